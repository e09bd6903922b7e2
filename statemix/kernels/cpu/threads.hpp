// One function, run by several threads at once.
//
// If torch has loaded an OpenMP runtime, its threads do the work, so that no second set of threads
// competes with them. Otherwise a team of threads is started on first use and waits between calls.
// The work must be divided while it is done: a thread of the team that wakes up late does nothing.

#pragma once

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

namespace statemix {

using Work = void (*)(void* context);
// GOMP_parallel, which the runtimes of GNU, LLVM and Intel export.
using OpenMP = void (*)(Work, void* context, unsigned threads, unsigned flags);

class Team {
 public:
  // Calls work(context) on this thread and on up to `helpers` others; returns when all are done.
  // While one caller uses the team, any other works alone.
  void run(int helpers, Work work, void* context) {
    if (busy_.exchange(true)) return work(context);
    offer(helpers, work, context);
    work(context);
    withdraw();
    busy_ = false;
  }

 private:
  void offer(int helpers, Work work, void* context) {
    std::lock_guard<std::mutex> lock(mutex_);
    while (started_ < helpers && start()) ++started_;
    work_ = work;
    context_ = context;
    places_ = helpers;
    ++number_;
    offered_.notify_all();
  }

  void withdraw() {
    std::unique_lock<std::mutex> lock(mutex_);
    places_ = 0;
    finished_.wait(lock, [this] { return working_ == 0; });
  }

  // False if the system allows no more threads; the caller then does more of the work itself.
  bool start() {
    try {
      std::thread(&Team::serve, this).detach();
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }

  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (uint64_t last = 0;;) {
      offered_.wait(lock, [&] { return places_ > 0 && number_ != last; });
      last = number_;
      --places_;
      ++working_;
      lock.unlock();
      work_(context_);
      lock.lock();
      if (--working_ == 0) finished_.notify_one();
    }
  }

  std::atomic<bool> busy_{false};
  std::mutex mutex_;
  std::condition_variable offered_, finished_;
  int started_ = 0, places_ = 0, working_ = 0;
  uint64_t number_ = 0;
  Work work_ = nullptr;
  void* context_ = nullptr;
};

inline OpenMP openmp = nullptr;
inline Team* team = nullptr;

// The threads of a team don't survive a fork, so a child starts with a new team.
inline void make_team() { team = new Team; }
inline Team& the_team() {
  static const bool made = [] {
    make_team();
    return pthread_atfork(nullptr, nullptr, &make_team) == 0;
  }();
  (void)made;
  return *team;
}

template <class Function>
void run_on(int threads, Function function) {
  const Work work = [](void* context) { (*static_cast<Function*>(context))(); };
  if (threads < 2)
    function();
  else if (openmp)
    openmp(work, &function, threads, 0);
  else
    the_team().run(threads - 1, work, &function);
}

}  // namespace statemix
