// A lock of the C library: C++'s own headers for locks take as long to compile as the rest of this.
#pragma once
#include <pthread.h>

namespace coilwork {

class Lock {
 public:
  void take() { pthread_mutex_lock(&mutex_); }
  bool try_to_take() { return pthread_mutex_trylock(&mutex_) == 0; }
  void give() { pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

// Holds a lock, or none.
class Holding {
 public:
  explicit Holding(Lock* lock) : lock_(lock) {
    if (lock_) lock_->take();
  }
  ~Holding() {
    if (lock_) lock_->give();
  }
  Holding(const Holding&) = delete;

 private:
  Lock* lock_;
};

}  // namespace coilwork
