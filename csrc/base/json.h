// The size of a JSON text, found before it is parsed into objects.
#pragma once
#include <cstdint>

namespace tailrace {

struct JsonSize {
    int64_t fields = 0;   // names of the outermost object
    int64_t parts = 0;    // objects, lists and strings (names among them); a long number counts as some
    int64_t values = 0;   // other numbers, true, false and null
    int64_t lone = -1;    // offset of a \u escape that is half of a surrogate pair; -1: there is none
};
// For text that is no JSON the counts are arbitrary, but it terminates.
JsonSize json_size(const char *begin, int64_t bytes);

}  // namespace tailrace
