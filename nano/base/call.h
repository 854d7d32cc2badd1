// A function to call and what it works on: seen, not owned, so for callees that are done with it when they return.
// As `const std::function<void()>&`, but nothing is allocated and a backtrace has no library frames.
#pragma once

namespace nano {

struct Call {
  void (*fn)(void* self);
  void* self;

  Call(void (*function)(void*), void* what) : fn(function), self(what) {}
  template <class F>  // a lambda
  Call(const F& f) : fn([](void* p) { (*static_cast<const F*>(p))(); }), self(const_cast<F*>(&f)) {}
};

}  // namespace nano
