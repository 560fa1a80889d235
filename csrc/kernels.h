// The kernels' C++ interface. Contracts (shapes, dtypes, ties, invariance) are in src/tailrace/kernels/__init__.py.
#pragma once
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "quantized/kv_codes.h"

namespace tailrace {

enum class Type : int { f32 = 0, bf16 = 1, f16 = 2 };

// The faults of a row of logits, as in kernels/status.py.
enum Status : int32_t { kOk = 0, kEmpty = 1, kNan = 2, kInf = 3 };

void argmax(const void *logits, Type type, int64_t rows, int64_t vocab, int64_t row_stride, int64_t *ids,
            int32_t *status);

// Packed weights: blocks of 64 outputs; bf16 interleaves pairs of inputs, [N/64][K/2][64][2]; f32 is [N/64][K][64].
constexpr int64_t kPack = 64;
int64_t packed_elements(Type type, int64_t n, int64_t k);
void pack_linear(const void *weight, Type type, int64_t n, int64_t k, void *packed);
void linear(const void *x, Type type, int64_t m, int64_t k, int64_t x_stride, const void *packed, const void *bias,
            int64_t n, void *y);

// One call of a linear layer: rows [m, k] at x, the next one x_stride entries on.
struct LinearCall {
    const void *x;
    int64_t m, k, x_stride;
    const void *packed, *bias;
    int64_t n;
    void *y;
};

// One layer per group of rows: those from starts[g] to starts[g + 1] are group g's. `all` has no weights and no bias;
// weights and biases are the groups' addresses, and biases may be null.
struct GroupedCall {
    LinearCall all;
    Type type;
    const int64_t *starts;
    int64_t groups;
    const uintptr_t *weights, *biases;
};
void grouped_linear(const GroupedCall &call);

// Weights quantized in blocks (docs/quantized.md). type: GGUF's number of the blocks' type.
bool is_quantized(int type);
// Return (number, weights of a block, bytes of a block) of all types.
std::vector<std::tuple<int, int64_t, int64_t>> quantized_types();
int64_t quantized_bytes(int type, int64_t n, int64_t k);
// Return false if a scale is not finite: then the packed weights must not be used.
bool pack_quantized(const void *raw, int type, int64_t n, int64_t k, void *packed);
void quantized_rows(const void *packed, int type, int64_t k, const int64_t *ids, int64_t count, Type to, void *out);
void grouped_quantized_linear(const GroupedCall &call, int format);
void quantized_linear(const void *x, Type type, int64_t m, int64_t k, int64_t x_stride, const void *packed, int format,
                      const void *bias, int64_t n, void *y);
// The widest instruction set in use: 0 portable, 1 AVX2, 2 AVX-512 VNNI, 3 AMX. Lowered only while tests compare.
void use_at_most(int set);
int best_quantized_set();

// A KV cache: positions lie by 16, bf16 (and float8 in its place) also by pairs, and int8 by fours. With codes, entries of
// keys and values are one byte, and scales are [2][blocks, Hkv, block_size], of keys and of values.
struct Attention {
    const void *query;  // [T, Hq, D]
    void *out;          // [T, Hq, Dv]
    const void *keys;   // [blocks, Hkv, block_size/16, D/2, 16, 2] bf16, [blocks, Hkv, block_size/16, D, 16] f32
    const void *values; // [blocks, Hkv, block_size/2, Dv, 2] bf16, [blocks, Hkv, block_size, Dv] f32
    const int32_t *tables;
    const int32_t *query_start;
    const int32_t *kv_len;
    int64_t tokens, blocks, sequences, table_width, heads_q, heads_kv, head_dim, value_dim, block_size, query_stride;
    float scale, softcap;
    int64_t window, chunk;  // 0: none
    const float *sinks;     // [Hq], or null
    KvCode code;
    const float *scales;    // null without codes
    const uint64_t *selected;  // [T, 1 or Hkv, words], a bit per position that a token may see; null: it may see all
    int64_t selected_heads, selected_words;
};
struct Store {
    const void *key, *value;  // [T, Hkv, D], [T, Hkv, Dv]
    void *keys, *values;
    const int64_t *slots;
    int64_t tokens, heads, head_dim, value_dim, block_size, blocks, key_stride, value_stride;
    KvCode code;
    float *scales;
};
// Both throw FieldError if a table or a slot points outside the cache.
void store_kv(const Store &call, Type type);
void attention(const Attention &call, Type type);

void rms_norm(const void *x, const void *weight, Type type, int64_t rows, int64_t dim, int64_t stride, float eps,
              bool plus_one, void *y);
// y = x + delta, [rows][dim].
void add(const void *x, const void *delta, Type type, int64_t rows, int64_t dim, void *y);
void add_rms_norm(void *residual, const void *delta, const void *weight, Type type, int64_t rows, int64_t dim, float eps,
                  void *y);
void rope(void *x, const void *cos, const void *sin, Type type, int64_t tokens, int64_t heads, int64_t dim,
          int64_t rotary, int64_t stride);
// Read this number of bytes, from front to back.
uint64_t stream(const void *data, int64_t bytes);
void want_large_pages(void *data, int64_t bytes);

void silu_mul(const void *gate_up, Type type, int64_t rows, int64_t dim, void *y);

}  // namespace tailrace
