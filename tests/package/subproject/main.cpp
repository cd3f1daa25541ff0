#include <ATen/core/Tensor.h>

#include <lockstep/base/error.h>
#include <lockstep/version.h>

int main() { return at::Tensor().defined() || std::string(LOCKSTEP_VERSION).empty() ? 1 : 0; }
