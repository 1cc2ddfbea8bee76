// A pointer to what it owns.
#pragma once

namespace coilwork {

template <class T>
class Owned {
 public:
  Owned() = default;
  Owned(decltype(nullptr)) {}
  explicit Owned(T* object) : object_(object) {}
  Owned(Owned&& other) noexcept : object_(other.release()) {}
  Owned(const Owned&) = delete;
  Owned& operator=(Owned&& other) noexcept {
    T* old = object_;
    object_ = other.release();
    delete old;
    return *this;
  }
  Owned& operator=(const Owned&) = delete;
  ~Owned() { delete object_; }

  T* get() const { return object_; }
  T& operator*() const { return *object_; }
  T* operator->() const { return object_; }
  explicit operator bool() const { return object_; }
  T* release() {
    T* released = object_;
    object_ = nullptr;
    return released;
  }

 private:
  T* object_ = nullptr;
};

}  // namespace coilwork
