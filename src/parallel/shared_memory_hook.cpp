#include "parallel/shared_memory_hook.h"

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/ScalarOps.h>
#include <c10/util/Exception.h>

#include <lockstep/base/error.h>
#include <lockstep/world/world.h>

#include "base/text.h"
#include "base/vectorized.h"
#include "environment/cpu_topology.h"
#include "parallel/bucket_hook.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

constexpr std::int64_t kGrain = 1 << 15;  // elements; fewer are not worth another thread

LOCKSTEP_VECTORIZED void multiply(float* to, const float* from, std::int64_t count, float factor) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = from[i] * factor;
  }
}

LOCKSTEP_VECTORIZED void add(float* to, const float* from, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] += from[i];
  }
}

LOCKSTEP_VECTORIZED void add(double* to, const double* from, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] += from[i];
  }
}

/// Half types are added in float.
template <class T>
void add(float* to, const T* from, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] += static_cast<float>(from[i]);
  }
}

/// In blocks that stay in the first cache. `sum` may be one of the parts, because a block is written after it was read.
template <class T>
void add_parts(std::byte* sum, std::span<const std::byte* const> parts, std::size_t bytes) {
  using Sum = at::opmath_type<T>;
  constexpr std::int64_t kBlock = 2048;
  const auto count = static_cast<std::int64_t>(bytes / sizeof(T));
  at::parallel_for(0, count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::array<Sum, kBlock> block;
    for (std::int64_t first = begin; first < end; first += kBlock) {
      const std::int64_t here = std::min(kBlock, end - first);
      std::fill_n(block.begin(), here, Sum{0});
      for (const std::byte* part : parts) {
        add(block.data(), reinterpret_cast<const T*>(part) + first, here);
      }
      T* const to = reinterpret_cast<T*>(sum) + first;
      std::transform(block.begin(), block.begin() + here, to, [](Sum value) { return static_cast<T>(value); });
    }
  });
}

AddParts add_parts_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return &add_parts<float>;
    case at::kDouble:
      return &add_parts<double>;
    case at::kHalf:
      return &add_parts<c10::Half>;
    case at::kBFloat16:
      return &add_parts<c10::BFloat16>;
    default:
      throw Error(fmt::format("--backend shm: gradients of dtype {} cannot be added", c10::toString(type)),
                  "use --backend gloo");
  }
}

/// This rank's share of the mean.
void write_share(const at::Tensor& gradients, double factor, std::byte* to) {
  if (gradients.scalar_type() == at::kFloat) {
    at::parallel_for(0, gradients.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      multiply(reinterpret_cast<float*>(to) + begin, gradients.const_data_ptr<float>() + begin, end - begin,
               static_cast<float>(factor));
    });
  } else {
    at::Tensor share = at::from_blob(to, gradients.sizes(), gradients.options());
    at::mul_out(share, gradients, at::native::wrapped_scalar_tensor(factor));  // not rounded to a half type
  }
}

/// What a rank tells the others: process, cores, and on the main rank the address of the memory, or why there is none.
struct Introduction {
  std::string process{};
  std::string cores{};
  std::string address{};
  std::string failure{};

  std::string text() const { return fmt::format("{}\n{}\n{}\n{}", process, cores, address, failure); }
  static Introduction parse(const std::string& text) {
    const std::vector<std::string> lines = split(text, '\n');
    return {.process = lines.at(0), .cores = lines.at(1), .address = lines.at(2), .failure = lines.at(3)};
  }
};

void check_failures(const std::vector<std::string>& failures) {
  const auto first = std::ranges::find_if(failures, [](const std::string& text) { return !text.empty(); });
  if (first != failures.end()) {
    throw CommError(fmt::format("--backend shm: rank {}: {}", first - failures.begin(), *first),
                    "the ranks must be processes of one user that see each other in /proc; else use --backend gloo",
                    ExitCode::usage);
  }
}

template <class Act>
std::string failure_of(const Act& act) {
  try {
    act();
    return {};
  } catch (const std::exception& error) {
    return plain_text(error);
  }
}

// Every rank learns of the failure of any rank, so that all give up together.
std::unique_ptr<SharedReduction> connect(World& world, std::size_t capacity) {
  std::optional<SharedMemory> memory;
  Introduction mine{.process = std::to_string(::getpid()), .cores = fmt::format("{}", fmt::join(allowed_cores(), " "))};
  if (world.is_main()) {
    mine.failure = failure_of([&] {
      memory.emplace(SharedMemory::create(SharedReduction::bytes_needed(world.size(), capacity)));
      mine.address = memory->address();
    });
  }
  SharedReduction::Options options{.rank = world.rank(), .capacity = capacity, .timeout = WorldAccess::timeout(world)};
  std::set<std::string> cores;
  std::string address;
  std::vector<std::string> failures;
  for (const std::string& text : world.gather(mine.text())) {
    const Introduction theirs = Introduction::parse(text);
    options.processes.push_back(static_cast<pid_t>(parse_int(theirs.process).value_or(0)));
    const auto numbers = split(theirs.cores, ' ');
    cores.insert(numbers.begin(), numbers.end());
    address += theirs.address;
    failures.push_back(theirs.failure);
  }
  check_failures(failures);
  options.spins = cores.size() >= options.processes.size();
  std::unique_ptr<SharedReduction> reduction;
  const std::string failure = failure_of([&] {
    if (!memory) {
      memory.emplace(SharedMemory::open(address));
    }
    reduction = std::make_unique<SharedReduction>(std::move(*memory), std::move(options));
  });
  check_failures(world.gather(failure));
  return reduction;
}

template <class Act>
auto as_backend_error(const Act& act) {
  try {
    return act();
  } catch (const SharedReductionFailed& error) {
    C10_THROW_ERROR(DistBackendError, error.what());
  }
}

}  // namespace

SharedMemoryHook::SharedMemoryHook(World& world, std::size_t gradients, std::size_t buckets)
    : group_(WorldAccess::group(world)),
      reduction_(connect(world, gradients + buckets * SharedReduction::kAlignment)) {}

c10::intrusive_ptr<c10::ivalue::Future> SharedMemoryHook::runHook(c10d::GradBucket& bucket) {
  const at::Tensor& full = bucket.getBuffer();
  if (full.is_sparse()) {
    return mean_over(*group_, full);
  }
  const at::NoGradGuard no_grad;
  const at::Tensor reals = reals_of(full);
  const AddParts add = add_parts_of(reals.scalar_type());
  std::byte* const to = as_backend_error([&] { return reduction_->next_part(reals.nbytes()); });
  write_share(reals, 1.0 / group_->getSize(), to);
  reduction_->publish(add);
  const auto done = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  pending_.push_back({.bucket = full, .done = done});
  if (finishes_at_once_) {
    finish();
  }
  return done;
}

void SharedMemoryHook::begin_backward(bool finishes_at_once) {
  finishes_at_once_ = finishes_at_once;
  if (!pending_.empty()) {
    throw Error("--backend shm: the backward before was not completed, so the ranks have different gradients",
                "end the run when a backward throws");
  }
}

void SharedMemoryHook::finish() {
  for (const Pending& part : pending_) {
    as_backend_error([&] { reduction_->finish(static_cast<std::byte*>(reals_of(part.bucket).mutable_data_ptr())); });
    part.done->markCompleted(c10::IValue(part.bucket));
  }
  pending_.clear();  // not after a failure: begin_backward() then refuses to go on
}

}  // namespace lockstep
