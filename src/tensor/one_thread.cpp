#include "tensor/one_thread.h"

#include <ATen/Parallel.h>

// Of the OpenMP library that LibTorch brings; null if it was built without one.
extern "C" [[gnu::weak, gnu::visibility("default")]] void omp_set_num_threads(int threads);

namespace lockstep {

OneThread::OneThread(bool active) {
  // get_num_threads() also gives the thread its default number, which would otherwise be done later.
  if (active && omp_set_num_threads != nullptr && at::get_num_threads() > 1) {
    before_ = at::get_num_threads();
    omp_set_num_threads(1);
  }
}

OneThread::~OneThread() {
  if (before_ > 0) {
    omp_set_num_threads(before_);
  }
}

}  // namespace lockstep
