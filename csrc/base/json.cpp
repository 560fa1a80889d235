// Count the values of a JSON text in one pass, without memory. Errors are left to the parser.
#include "base/json.h"

#include <array>

namespace tailrace {
namespace {

constexpr int64_t kShort = 19;  // digits of a number that a machine word holds
// Reading a longer number takes time quadratic in its length; with 64 digits as long as reading a string.
constexpr int64_t kSquare = 4096;

// The bytes that end a number or a name such as true.
constexpr std::array<bool, 256> ends_value = [] {
    std::array<bool, 256> found{};
    for (unsigned char c : {' ', '\t', '\n', '\r', ',', ':', '{', '}', '[', ']', '"'}) found[c] = true;
    return found;
}();

// The surrogate of an escape at p, or 0.
int surrogate(const char *p, const char *end) {
    if (end - p < 6 || p[0] != '\\' || p[1] != 'u' || (p[2] | 0x20) != 'd') return 0;
    const int digit = p[3] <= '9' ? p[3] - '0' : (p[3] | 0x20) - 'a' + 10;
    return digit >= 8 && digit <= 15 ? digit : 0;
}

// Returns the end of the string whose first character, after its quote, is at p.
const char *skip_string(const char *p, const char *begin, const char *end, JsonSize &size) {
    while (p < end && *p != '"') {
        if (*p != '\\') {
            ++p;
            continue;
        }
        const int half = surrogate(p, end);
        if (half == 0) {
            p += 2;
        } else if (half < 12 && surrogate(p + 6, end) >= 12) {
            p += 12;
        } else {
            if (size.lone < 0) size.lone = p - begin;
            p += 6;
        }
    }
    return p + 1;
}

}  // namespace

JsonSize json_size(const char *begin, int64_t bytes) {
    JsonSize size;
    const char *p = begin, *const end = begin + bytes;
    int64_t depth = 0;
    while (p < end) {
        switch (*p) {
            case ' ': case '\t': case '\n': case '\r': case ',': ++p; break;
            case ':': size.fields += depth == 1; ++p; break;
            case '{': case '[': ++size.parts; ++depth; ++p; break;
            case '}': case ']': --depth; ++p; break;
            case '"': ++size.parts; p = skip_string(p + 1, begin, end, size); break;
            default: {
                const char *const start = p;
                while (p < end && !ends_value[static_cast<unsigned char>(*p)]) ++p;
                const int64_t length = p - start;
                if (length > kShort)
                    size.parts += 1 + length * length / kSquare;
                else
                    ++size.values;
            }
        }
    }
    return size;
}

}  // namespace tailrace
