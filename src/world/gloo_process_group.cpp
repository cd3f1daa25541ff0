// The only includer of c10d's Gloo header, which needs the header stubs of cmake/gloo.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#ifndef USE_C10D_GLOO
#error "USE_C10D_GLOO is not defined: the header above is silently empty"
#endif

#include "world/process_group.h"

namespace lockstep {

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    const std::string& address, std::chrono::milliseconds timeout) {
  c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> options;
  if (address.empty()) {
    options = c10d::ProcessGroupGloo::Options::create_default(timeout);
  } else {
    options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  }
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
}

}  // namespace lockstep
