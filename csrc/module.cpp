// The Python binding: addresses and sizes in, nothing checked here; src/tailrace/kernels/cpu checks shapes and dtypes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <initializer_list>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/pool.h"
#include "base/tiles.h"
#include "kernels.h"
#include "sample/constants.h"
#include "sample/draw.h"
#include "sample/dry.h"
#include "sample/flat_rows.h"
#include "sample/noise.h"
#include "sample/program.h"
#include "sample/sample.h"
#include "state/scan.h"

namespace nb = nanobind;
using namespace tailrace;

namespace {

using Address = uintptr_t;
template <typename T = void> T *at(Address address) { return reinterpret_cast<T *>(address); }

// Addresses of starts, first and slots; sequences and rows.
using RingArguments = std::tuple<Address, Address, Address, int64_t, int64_t>;
Ring make_ring(const RingArguments &given) {
    const auto &[starts, first, slots, sequences, rows] = given;
    return {at<int64_t>(starts), at<int64_t>(first), at<int64_t>(slots), sequences, rows};
}

// Address, dtype, and numbers between tokens.
using RowArguments = std::tuple<Address, int, int64_t>;
Rows make_rows(const RowArguments &given) {
    const auto &[data, type, stride] = given;
    return {at(data), Type(type), stride};
}

// Let Python get a FieldError as an error of the class `type`, which has the attribute `field`.
void translate_field_error(const std::exception_ptr &thrown, void *type) {
    try {
        std::rethrow_exception(thrown);
    } catch (const FieldError &error) {
        PyObject *kind = static_cast<PyObject *>(type);
        nb::object made = nb::handle(kind)(error.what());
        nb::setattr(made, "field", nb::str(error.field));
        PyErr_SetObject(kind, made.ptr());
    }
}

}  // namespace

NB_MODULE(_cpu, m) {
    using Free = nb::call_guard<nb::gil_scoped_release>;
    m.doc() = "tailrace's CPU kernels; call them through tailrace.kernels";
    PyObject *field_error = PyErr_NewExceptionWithDoc(
        "tailrace._cpu.FieldError", "An argument that a kernel refuses; `field` is its name.", PyExc_ValueError, nullptr);
    m.attr("FieldError") = nb::borrow(field_error);  // the translator keeps the other reference
    nb::register_exception_translator(translate_field_error, field_error);
    m.def("set_num_threads", [](int n) { Pool::instance().resize(n); }, Free());
    m.def("num_threads", [] { return Pool::instance().size(); });
    m.def("has_bf16", [] { return has_bf16(); });
    m.def("argmax", [](Address logits, int type, int64_t rows, int64_t vocab, int64_t stride, Address ids, Address status) {
        argmax(at(logits), Type(type), rows, vocab, stride, at<int64_t>(ids), at<int32_t>(status));
    }, Free());
    m.def("packed_elements", [](int type, int64_t n, int64_t k) { return packed_elements(Type(type), n, k); });
    m.def("pack_linear", [](Address weight, int type, int64_t n, int64_t k, Address packed) {
        pack_linear(at(weight), Type(type), n, k, at(packed));
    }, Free());
    m.def("linear", [](Address x, int type, int64_t rows, int64_t k, int64_t stride, Address packed, Address bias,
                       int64_t n, Address y) {
        linear(at(x), Type(type), rows, k, stride, at(packed), at(bias), n, at(y));
    }, Free());
    m.def("grouped_linear", [](Address x, int type, int64_t rows, int64_t k, int64_t stride, Address starts, int64_t groups,
                               Address weights, Address biases, int64_t n, int format, Address y) {
        const GroupedCall call{{at(x), rows, k, stride, nullptr, nullptr, n, at(y)}, Type(type), at<int64_t>(starts), groups,
                               at<uintptr_t>(weights), at<uintptr_t>(biases)};
        format < 0 ? grouped_linear(call) : grouped_quantized_linear(call, format);
    }, Free());
    m.def("is_quantized", [](int type) { return is_quantized(type); });
    m.def("quantized_types", [] { return quantized_types(); });
    m.def("quantized_bytes", [](int type, int64_t n, int64_t k) { return quantized_bytes(type, n, k); });
    m.def("pack_quantized", [](Address raw, int type, int64_t n, int64_t k, Address packed) {
        return pack_quantized(at(raw), type, n, k, at(packed));
    }, Free());
    m.def("quantized_rows", [](Address packed, int type, int64_t k, Address ids, int64_t count, int to, Address out) {
        quantized_rows(at(packed), type, k, at<int64_t>(ids), count, Type(to), at(out));
    }, Free());
    m.def("quantized_linear", [](Address x, int type, int64_t rows, int64_t k, int64_t stride, Address packed, int format,
                                 Address bias, int64_t n, Address y) {
        quantized_linear(at(x), Type(type), rows, k, stride, at(packed), format, at(bias), n, at(y));
    }, Free());
    m.def("use_at_most", [](int set) { use_at_most(set); });
    m.def("best_quantized_set", [] { return best_quantized_set(); });
    m.def("store_kv", [](Address key, Address value, int type, Address keys, Address values, Address slots,
                         int64_t tokens, int64_t heads, int64_t dim, int64_t value_dim, int64_t block_size, int64_t blocks,
                         int64_t key_stride, int64_t value_stride, int code, Address scales) {
        store_kv({at(key), at(value), at(keys), at(values), at<int64_t>(slots), tokens, heads, dim, value_dim, block_size,
                  blocks, key_stride, value_stride, KvCode(code), at<float>(scales)}, Type(type));
    }, Free());
    m.def("attention", [](Address query, Address out, int type, Address keys, Address values, Address tables,
                          Address query_start, Address kv_len, int64_t tokens, int64_t blocks, int64_t sequences, int64_t table_width, int64_t heads_q,
                          int64_t heads_kv, int64_t dim, int64_t value_dim, int64_t block_size, int64_t query_stride, float scale,
                          float softcap, int64_t window, int64_t chunk, Address sinks, int code, Address scales, Address selected,
                          int64_t selected_heads, int64_t selected_words) {
        attention({at(query), at(out), at(keys), at(values), at<int32_t>(tables), at<int32_t>(query_start),
                   at<int32_t>(kv_len), tokens, blocks, sequences, table_width, heads_q, heads_kv, dim, value_dim, block_size, query_stride, scale,
                   softcap, window, chunk, at<float>(sinks), KvCode(code), at<float>(scales), at<uint64_t>(selected), selected_heads,
                   selected_words}, Type(type));
    }, Free());
    m.def("rms_norm", [](Address x, Address weight, int type, int64_t rows, int64_t dim, int64_t stride, float eps,
                         bool plus_one, Address y) {
        rms_norm(at(x), at(weight), Type(type), rows, dim, stride, eps, plus_one, at(y));
    }, Free());
    m.def("add", [](Address x, Address delta, int type, int64_t rows, int64_t dim, Address y) {
        add(at(x), at(delta), Type(type), rows, dim, at(y));
    }, Free());
    m.def("add_rms_norm", [](Address residual, Address delta, Address weight, int type, int64_t rows, int64_t dim,
                             float eps, Address y) {
        add_rms_norm(at(residual), at(delta), at(weight), Type(type), rows, dim, eps, at(y));
    }, Free());
    m.def("rope", [](Address x, Address cos, Address sin, int type, int64_t tokens, int64_t heads, int64_t dim,
                     int64_t rotary, int64_t stride) {
        rope(at(x), at(cos), at(sin), Type(type), tokens, heads, dim, rotary, stride);
    }, Free());
    m.def("scan_heads", [](RowArguments query, RowArguments key, RowArguments value, Address decay, Address factor,
                           Address skip, int64_t heads, int64_t key_heads, int64_t key_dim, int64_t value_dim, float scale,
                           bool delta, bool normalize, bool per_channel, Address memory, Address out, int out_type,
                           RingArguments ring) {
        scan_heads({make_rows(query), make_rows(key), make_rows(value), at<float>(decay), at<float>(factor),
                    at<float>(skip), heads, key_heads, key_dim, value_dim, scale, delta, normalize, per_channel,
                    at<float>(memory), at(out), Type(out_type), make_ring(ring)});
    }, Free());
    m.def("scan_channels", [](RowArguments x, RowArguments b, RowArguments c, Address step, Address rate,
                              int64_t channels, int64_t states, Address memory, Address out, RingArguments ring) {
        scan_channels({make_rows(x), make_rows(b), make_rows(c), at<float>(step), at<float>(rate), channels, states,
                       at<float>(memory), at<float>(out), make_ring(ring)});
    }, Free());
    m.def("convolve", [](RowArguments x, Address weight, Address bias, int64_t channels, int64_t width, bool silu,
                         Address memory, Address out, RingArguments ring) {
        convolve({make_rows(x), at(weight), at(bias), channels, width, silu, at(memory), at(out), make_ring(ring)});
    }, Free());
    m.def("gumbel", [](int64_t key, int64_t position, int64_t stream, Address ids, int64_t n, Address out) {
        gumbel({static_cast<uint64_t>(key), static_cast<uint64_t>(position), static_cast<uint32_t>(stream)},
               at<uint32_t>(ids), n, at<float>(out));
    }, Free());
    m.def("words", [](int64_t key, int64_t position, int64_t stream, Address ids, int64_t n, Address out) {
        words({static_cast<uint64_t>(key), static_cast<uint64_t>(position), static_cast<uint32_t>(stream)},
              at<uint32_t>(ids), n, at<uint32_t>(out));
    }, Free());
    m.def("uniform", [](int64_t key, int64_t position, int64_t stream) {
        return uniform({static_cast<uint64_t>(key), static_cast<uint64_t>(position), static_cast<uint32_t>(stream)});
    });
    m.def("stream", [](Address data, int64_t bytes) { return stream(at(data), bytes); }, Free());
    m.def("want_large_pages", [](Address data, int64_t bytes) { want_large_pages(at(data), bytes); });
    m.def("json_size", [](nb::bytes text) {
        const char *begin = text.c_str();
        const int64_t bytes = text.size();
        nb::gil_scoped_release free;
        const JsonSize size = json_size(begin, bytes);
        return std::make_tuple(size.fields, size.parts, size.values, size.lone);
    });
    m.def("want_avx512", [](bool wanted) { avx512_wanted = wanted; });
    m.def("want_tiles", [](bool wanted) { tiles_wanted = wanted; });
    m.def("flat_draws", [] { return flat_draws.load(); });
    m.def("agreements", [](Address tokens, int64_t n, Address out) { agreements(at<int64_t>(tokens), n, at<int64_t>(out)); }, Free());
    m.def("check", [](Address rows) { check(*at<StepRows>(rows)); });
    m.def("sample", [](Address step) { sample(*at<Step>(step)); }, Free());
    m.def("propose", [](Address step, Address begin, Address stream, Address q, Address note, Address token_ids, Address status) {
        propose(*at<Step>(step), {at<int64_t>(begin), at<int64_t>(stream), at<float *>(q), at<int32_t *>(note), at<int64_t>(token_ids),
                                 at<int32_t>(status)});
    }, Free());
    m.attr("NOTED") = kNoted;
    nb::dict constants;
    for (const auto &[name, number] : std::initializer_list<std::pair<const char *, int64_t>>{
             {"DRAW_STREAM", kDrawStream}, {"ACCEPT_STREAM", kAcceptStream}, {"RESIDUAL_STREAM", kResidualStream},
             {"XTC_STREAM", kXtcStream}, {"DRAFT_STREAM", kDraftStream}, {"BLOCK_STREAM", kBlockStream},
             {"GREEDY", kGreedy}, {"PROCESSED", kProcessed}, {"ENTROPY", kEntropy}, {"TAKEN", kTaken},
             {"UNSUPPORTED", kUnsupported}, {"REPORTED", kReported}, {"STATEFUL", kStateful}, {"COSTLY", kCostly},
             {"SURVIVORS", kSurvivors}, {"FALLS_BACK", kFallsBack}, {"OK", kOk}, {"EMPTY", kEmpty}, {"NAN", kNan},
             {"INF", kInf}})
        constants[name] = number;
    for (const auto &[name, number] : std::initializer_list<std::pair<const char *, double>>{
             {"TYPICAL_EPSILON", kTypicalEpsilon}, {"TYPICAL_DELTA", kTypicalDelta}, {"TOLERANCE", kTolerance},
             {"SIGMA_SLACK", kSigmaSlack}, {"ADAPTIVE_PEAK", kAdaptivePeak}, {"ADAPTIVE_SHARPNESS", kAdaptiveSharpness},
             {"ADAPTIVE_WIDTH", kAdaptiveWidth}, {"COLD", kColdNoise}})
        constants[name] = number;
    m.attr("CONSTANTS") = constants;
    nb::dict rules;
    rules["exact"] = static_cast<int32_t>(Rule::exact), rules["rejection"] = static_cast<int32_t>(Rule::rejection);
    rules["block"] = static_cast<int32_t>(Rule::block), rules["typical"] = static_cast<int32_t>(Rule::typical);
    m.attr("RULES") = rules;
    m.def("struct_sizes", [] { return std::vector<size_t>{sizeof(Edit), sizeof(Tournament), sizeof(Stage), sizeof(Program), sizeof(StepRows), sizeof(Step)}; });
    nb::list stages;
#define X(kind, needs) stages.append(nb::make_tuple(#kind, #needs));
    TAILRACE_STAGES(X)
#undef X
    m.attr("STAGES") = nb::tuple(stages);
    nb::class_<Counts>(m, "Counts")
        .def(nb::init<>())
        .def(nb::init<const Counts &>())
        .def("add", &Counts::add)
        .def("drop", &Counts::drop)
        .def("extend", [](Counts &c, Address ids, int64_t n, uint32_t repeated, uint32_t counted) {
            c.extend(at<int64_t>(ids), n, repeated, counted);
        })
        .def("lists", [](const Counts &c) { return std::make_tuple(c.ids, c.repeated, c.counted); })
        .def("of", [](const Counts &c, uint32_t id) { return c.of(id); })
        .def_prop_ro("address", [](const Counts &c) { return reinterpret_cast<Address>(&c); });
    nb::class_<Survivors>(m, "Survivors")
        .def("__init__", [](Survivors *s, int64_t tokens) { new (s) Survivors{std::vector<std::vector<int32_t>>(static_cast<size_t>(tokens))}; })
        // bits [tokens, words]: of each token, the ids that survived as 32 bits per word
        .def("read", [](Survivors &s, Address bits, int64_t words) { s.read(at<uint32_t>(bits), words); })
        .def("total", &Survivors::total)
        .def("write", [](const Survivors &s, Address ids, Address offsets) { s.write(at<int32_t>(ids), at<int64_t>(offsets)); })
        .def_prop_ro("address", [](const Survivors &s) { return reinterpret_cast<Address>(&s); });
    nb::class_<Said>(m, "Said")
        .def(nb::init<>())
        .def(nb::init<const Said &>())
        .def("add", &Said::add)
        .def("drop", &Said::drop)
        .def_prop_ro("address", [](const Said &s) { return reinterpret_cast<Address>(&s); });
    m.def("silu_mul", [](Address gate_up, int type, int64_t rows, int64_t dim, Address y) {
        silu_mul(at(gate_up), Type(type), rows, dim, at(y));
    }, Free());
}
