// Small operations by one thread.
#pragma once

namespace lockstep {

/// While it lives, the operations of this thread on the CPU use one thread. at::set_num_threads would do so for every
/// thread of the program that uses LibTorch for the first time meanwhile. Costs nothing measurable.
class OneThread {
 public:
  explicit OneThread(bool active);
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = 0;  // 0: nothing was changed
};

}  // namespace lockstep
