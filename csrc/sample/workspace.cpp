#include "sample/workspace.h"

#include "sample/row.h"

namespace tailrace {

void Workspace::fit(int64_t vocab) {
    const size_t blocks = static_cast<size_t>((vocab + kBlock - 1) / kBlock), all = blocks * kBlock + kLanes;
    if (ids.size() >= all) return;
    for (auto *floats : {&raw, &x, &weights, &noise, &other_x, &other_weights}) floats->resize(all);
    for (auto *floats : {&block_max, &raw_block_max, &ranked}) floats->resize(blocks);
    sums.resize(6 * kLanes * blocks);
    hot_group.resize(blocks * kBlockGroups + kLanes);
    hot_bits.resize(blocks * kBlockGroups + kLanes);
    flags.resize(all);
    ids.resize(all);
    other_ids.resize(all);
    order.resize(all);
}

Workspace &Workspace::mine() {
    thread_local Workspace space;
    return space;
}

}  // namespace tailrace
