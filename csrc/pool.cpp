#include "pool.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#define TAILRACE_PAUSE() _mm_pause()
#elif defined(__aarch64__)
#define TAILRACE_PAUSE() __asm__ __volatile__("yield")
#else
#define TAILRACE_PAUSE() std::this_thread::yield()
#endif

namespace tailrace {

namespace {
// Long enough to bridge the Python between two kernels of a decode step, short enough not to steal a core from others.
constexpr auto kSpin = std::chrono::microseconds(60);
}  // namespace

Pool &Pool::instance() {
    static Pool *pool = new Pool();  // never destroyed: workers may outlive static destructors at interpreter exit
    return *pool;
}

Pool::~Pool() { resize(1); }

void Pool::resize(int threads) {
    std::lock_guard<std::mutex> call(caller_);
    stop_ = true;
    generation_.fetch_add(1);
    {
        std::lock_guard<std::mutex> lock(sleep_);
        wake_.notify_all();
    }
    for (auto &worker : workers_) worker.join();
    workers_.clear();
    stop_ = false;
    const uint64_t now = generation_.load();
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, now] { work(now); });
}

void Pool::drain() {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) (*task_)(i);
}

void Pool::work(uint64_t seen) {
    for (;;) {
        const auto until = std::chrono::steady_clock::now() + kSpin;
        while (generation_.load(std::memory_order_acquire) == seen) {
            for (int i = 0; i < 64 && generation_.load(std::memory_order_acquire) == seen; ++i) TAILRACE_PAUSE();
            if (std::chrono::steady_clock::now() < until) continue;
            std::unique_lock<std::mutex> lock(sleep_);
            sleepers_.fetch_add(1);
            wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
            sleepers_.fetch_sub(1);
        }
        seen = generation_.load(std::memory_order_acquire);
        if (stop_) return;
        drain();
        busy_.fetch_sub(1, std::memory_order_release);
    }
}

void Pool::run(int64_t tasks, const std::function<void(int64_t)> &task) {
    if (tasks <= 0) return;
    std::lock_guard<std::mutex> call(caller_);
    if (tasks == 1 || workers_.empty()) {
        for (int64_t i = 0; i < tasks; ++i) task(i);
        return;
    }
    task_ = &task;
    tasks_ = tasks;
    next_.store(0, std::memory_order_relaxed);
    busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) {
        std::lock_guard<std::mutex> lock(sleep_);
        wake_.notify_all();
    }
    drain();
    while (busy_.load(std::memory_order_acquire) > 0) TAILRACE_PAUSE();
}

}  // namespace tailrace
