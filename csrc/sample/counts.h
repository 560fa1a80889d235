// The tokens of a sequence: how often each counts for the penalties, and their order.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace tailrace {

// The distinct tokens of a sequence, sorted by id, and how often each counts. The repetition penalty reads `repeated`,
// presence and frequency penalty read `counted`; the two differ if the penalties have different scopes. A token that
// counts for neither is removed.
class Counts {
  public:
    std::pair<uint32_t, uint32_t> of(uint32_t id) const;  // repeated, counted
    void add(uint32_t id, uint32_t repeated, uint32_t counted);
    void drop(uint32_t id, uint32_t repeated, uint32_t counted);
    // Add many tokens; sorts once.
    void extend(const int64_t *ids, int64_t n, uint32_t repeated, uint32_t counted);

    std::vector<uint32_t> ids, repeated, counted;

  private:
    int64_t place(uint32_t id) const;
};

// The tokens of a sequence in their order.
class Said {
  public:
    void add(uint32_t id) { tokens.push_back(id); }
    void drop() { tokens.pop_back(); }

    std::vector<uint32_t> tokens;
};

}  // namespace tailrace
