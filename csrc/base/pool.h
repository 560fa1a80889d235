// A small thread pool for kernels of a few microseconds: workers spin briefly for the next call, then sleep.
//
// OpenMP is not used on purpose: PyTorch's wheels carry their own copy of libgomp, and two runtimes that both spin on
// the same cores slow each other down. One kernel runs at a time (callers hold the pool's lock).
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tailrace {

class Pool {
  public:
    static Pool &instance();
    // Total number of threads that work on a call, the caller included.
    void resize(int threads);
    int size() const { return static_cast<int>(workers_.size()) + 1; }
    // Runs task(i) for i in [0, tasks). Tasks are handed out one by one, so an unlucky core does not hold up the rest.
    void run(int64_t tasks, const std::function<void(int64_t)> &task);
    // Runs task(i, next) for i in [0, tasks): every thread walks a contiguous share, then takes from the others'.
    // `next` is the task that this thread will probably get next, or -1: something to prefetch for.
    void sweep(int64_t tasks, const std::function<void(int64_t, int64_t)> &task);

  private:
    static constexpr int kClosed = -1;
    Pool() = default;
    ~Pool();
    void work(uint64_t seen);
    bool enter();
    void drain();

    std::vector<std::thread> workers_;
    std::mutex caller_;  // one call at a time
    std::mutex sleep_;
    std::condition_variable wake_;
    std::atomic<int> sleepers_{0};
    std::atomic<uint64_t> generation_{0};
    std::atomic<int64_t> next_{0};
    std::atomic<int> inside_{kClosed};  // workers on the current call; closed between calls
    std::atomic<bool> stop_{false};
    int64_t tasks_ = 0;
    const std::function<void(int64_t)> *task_ = nullptr;
};

}  // namespace tailrace
