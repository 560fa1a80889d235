// Gumbel-max over survivors, and over what was not collected of a row.
#pragma once
#include "survivors.h"

namespace tailrace {

// 3 is XTC's coin, 16 … 47 are the drafts' (src/tailrace/drafting/pick.py); kBlockStream + j is drawn at the position where a step's drafts begin.
constexpr uint32_t kDrawStream = 0, kAcceptStream = 1, kResidualStream = 2, kBlockStream = 64;
constexpr int64_t kNobody = -1;
constexpr int64_t kFew = 256;  // of so few, the noise is simply computed

// The largest x + noise of what was offered, ties to the smaller id.
struct Best {
    const Noise &noise;
    int64_t excluded;
    float *room;  // for the noise of what is offered
    float score = kNone;
    int64_t id = kNobody;

    void offer(const uint32_t *ids, const float *x, int64_t n, bool known_hot = false);
};

// The hot ids, ascending; how many.
int64_t ids_of(const Hot &hot, uint32_t *ids);

// The survivors that are hot, put into space.other_ids and other_x; how many.
int64_t hot_among(const Survivors &survivors, const Noise &noise, Workspace &space);

// argmax of x + noise, ties to the smaller id, without `excluded`. `x` need not be sorted; ids ascend.
int64_t draw(const Survivors &survivors, const Noise &noise, int64_t excluded, Workspace &space);

// The same over the whole row where only (l − max) / temperature was asked for. `survivors` holds the row down to `floor` (a
// logit); scan.hot must be there. May collect deeper.
int64_t draw_all(const Row &row, const Scan &scan, double temperature, float floor, Survivors &survivors, const Noise &noise,
                 int64_t excluded, Workspace &space);

}  // namespace tailrace
