// The error of an argument that a kernel refuses. Python gets it as tailrace._cpu.FieldError (module.cpp).
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace tailrace {

// `field` is the argument's name, what() a sentence about it.
struct FieldError : std::invalid_argument {
    FieldError(const char *field, const std::string &text) : std::invalid_argument(text), field(field) {}
    const char *field;  // a literal
};

inline void require(bool holds, const char *field, const char *rule, int64_t got) {
    if (!holds) throw FieldError(field, std::string(rule) + ", got " + std::to_string(got));
}

}  // namespace tailrace
