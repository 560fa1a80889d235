#include "base/pool.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#if defined(__linux__)
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#endif

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
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kSpinsBeforeYield = 2000;

#if defined(__linux__)
// Return all cores on which any thread of this process may run.
cpu_set_t anywhere() {
    cpu_set_t together;
    CPU_ZERO(&together);
    DIR *tasks = opendir("/proc/self/task");
    if (tasks == nullptr) return together;
    while (const dirent *task = readdir(tasks)) {
        cpu_set_t one;
        CPU_ZERO(&one);
        const int id = atoi(task->d_name);  // 0 of "." and "..", which would be the calling thread itself
        if (id > 0 && sched_getaffinity(id, sizeof one, &one) == 0) CPU_OR(&together, &together, &one);
    }
    closedir(tasks);
    return together;
}
#endif

// A thread begins where its maker may run, which may be a single core: OMP_PROC_BIND pins the main thread, and all
// workers would share its core with it. So workers may run on every core of the process; if the call fails, they stay
// on their core.
void release(std::vector<std::thread> &workers) {
#if defined(__linux__)
    if (workers.empty()) return;
    const cpu_set_t places = anywhere();
    for (auto &worker : workers) pthread_setaffinity_np(worker.native_handle(), sizeof places, &places);
#else
    (void)workers;
#endif
}
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
    release(workers_);
}

void Pool::drain() {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) (*task_)(i);
}

// False once the caller has closed the call: a worker that wakes late is not waited for and touches nothing.
bool Pool::enter() {
    int inside = inside_.load(std::memory_order_acquire);
    while (inside != kClosed)
        if (inside_.compare_exchange_weak(inside, inside + 1, std::memory_order_acquire)) return true;
    return false;
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
        if (enter()) {
            drain();
            inside_.fetch_sub(1, std::memory_order_release);
        }
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
    inside_.store(0, std::memory_order_release);
    generation_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) {
        std::lock_guard<std::mutex> lock(sleep_);
        wake_.notify_all();
    }
    drain();
    // Wait only for workers that took a task. Give the core away if a worker has lost its core.
    for (int spins = 0;; ++spins) {
        int nobody = 0;
        if (inside_.compare_exchange_strong(nobody, kClosed, std::memory_order_acquire)) return;
        if (spins < kSpinsBeforeYield) TAILRACE_PAUSE();
        else std::this_thread::yield();
    }
}

void Pool::sweep(int64_t tasks, const std::function<void(int64_t, int64_t)> &task) {
    const int64_t shares = std::min<int64_t>(size(), tasks);
    if (shares <= 0) return;
    struct alignas(64) Share {
        std::atomic<int64_t> next;
        int64_t end;
    };
    std::vector<Share> share(static_cast<size_t>(shares));
    for (int64_t s = 0; s < shares; ++s) {
        share[s].next = s * tasks / shares;
        share[s].end = (s + 1) * tasks / shares;
    }
    run(shares, [&](int64_t own) {
        for (int64_t s = 0; s < shares; ++s) {
            Share &from = share[(own + s) % shares];
            for (int64_t i; (i = from.next.fetch_add(1, std::memory_order_relaxed)) < from.end;)
                task(i, i + 1 < from.end ? i + 1 : -1);
        }
    });
}

}  // namespace tailrace
