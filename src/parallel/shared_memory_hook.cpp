#include "parallel/shared_memory_hook.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>

#include <lockstep/base/error.h>
#include <lockstep/world/world.h>

#include "base/assertion.h"
#include "base/mapped.h"
#include "base/text.h"
#include "base/vectorized.h"
#include "environment/cpu_topology.h"
#include "parallel/bucket_hook.h"
#include "world/peer_errors.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

constexpr std::int64_t kGrain = 1 << 15;  // elements; fewer are not worth another thread

using Means = std::span<std::byte* const>;
using Parts = std::span<const std::byte* const>;

/// The compiler divides it into as many registers as it needs.
template <class Sum>
using Vector [[gnu::vector_size(64)]] = Sum;

template <class T, class Sum>
[[gnu::always_inline]] inline Sum share_of(T value, Sum factor) noexcept {
  return static_cast<T>(static_cast<Sum>(value) * factor);  // rounded to T, as it is for the process group
}

using Bits = Vector<std::uint32_t>;
using Halves [[gnu::vector_size(32)]] = std::uint16_t;

/// All bits where the number, as a signed one, is negative. The compiler makes slow code of comparisons of vectors
/// that are wider than its registers.
[[gnu::always_inline]] inline void find_negative(const Bits& numbers, Bits& mask) noexcept {
  mask = reinterpret_cast<Bits>(reinterpret_cast<Vector<std::int32_t>>(numbers) >> 31);
}

/// These two do for 16 numbers what c10::Half does for one, with its operations and so with its results.
[[gnu::always_inline]] inline void to_floats(const Halves& halves, Vector<float>& numbers) noexcept {
  const Bits bits = __builtin_convertvector(halves, Bits);
  const Bits magnitude = bits << 17;
  const Vector<float> normal = reinterpret_cast<Vector<float>>((magnitude >> 4) + (0xe0U << 23)) * 0x1p-112F;
  const Vector<float> subnormal = reinterpret_cast<Vector<float>>((magnitude >> 17) | (0x7eU << 23)) - 0.5F;
  Bits is_subnormal{};
  find_negative((magnitude >> 27) - 1U, is_subnormal);
  numbers =
      reinterpret_cast<Vector<float>>(((bits & 0x8000U) << 16) | (reinterpret_cast<Bits>(subnormal) & is_subnormal) |
                                      (reinterpret_cast<Bits>(normal) & ~is_subnormal));
}

[[gnu::always_inline]] inline void to_halves(const Vector<float>& numbers, Halves& halves) noexcept {
  constexpr std::uint32_t kLeastExponent = 0x71;  // of a normal number in the result
  const Bits bits = reinterpret_cast<Bits>(numbers);
  const Bits magnitude = bits & 0x7fffffffU;
  const Bits exponent = magnitude >> 23;
  Bits is_small{};
  find_negative(exponent - kLeastExponent, is_small);
  const Bits bias = ((exponent & ~is_small) | (kLeastExponent & is_small)) + 0xfU;
  const Vector<float> scaled = reinterpret_cast<Vector<float>>(magnitude) * 0x1p112F * 0x1p-110F;
  const Bits rounded = reinterpret_cast<Bits>(reinterpret_cast<Vector<float>>(bias << 23) + scaled);
  const Bits number = ((rounded >> 13) & 0x7c00U) + (rounded & 0xfffU);
  Bits is_nan{};
  find_negative(0x7f800000U - magnitude, is_nan);
  halves = __builtin_convertvector(((bits >> 16) & 0x8000U) | (0x7e00U & is_nan) | (number & ~is_nan), Halves);
}

/// Elements from `begin` to `end`. Some of them at a time stay in registers from the first part to the last mean, so
/// that each is read once and written once. They are read before they are written, because `means` may be the parts.
/// Half types are added in float.
template <class T>
[[gnu::always_inline]] inline void write_elements(Means means, Parts parts, std::int64_t begin,
                                                  std::int64_t end) noexcept {
  using Sum = at::opmath_type<T>;
  constexpr std::int64_t kLanes = sizeof(Vector<Sum>) / sizeof(Sum);
  constexpr std::int64_t kVectors = 4;
  const auto factor = static_cast<Sum>(1.0 / static_cast<double>(parts.size()));
  const auto read = [factor](const std::byte* part, std::int64_t at, Vector<Sum>& shares)
      __attribute__((always_inline)) {
    const T* const from = reinterpret_cast<const T*>(part) + at;
    if constexpr (std::is_same_v<T, Sum>) {
      std::memcpy(&shares, from, sizeof(shares));
      shares *= factor;
    } else if constexpr (std::is_same_v<T, c10::Half>) {
      Halves halves{};
      std::memcpy(&halves, from, sizeof(halves));
      to_floats(halves, shares);
      to_halves(shares * factor, halves);
      to_floats(halves, shares);
    } else {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        shares[lane] = share_of(from[lane], factor);
      }
    }
  };
  const auto write = [](std::byte * mean, std::int64_t at, const Vector<Sum>& sum) __attribute__((always_inline)) {
    T* const to = reinterpret_cast<T*>(mean) + at;
    if constexpr (std::is_same_v<T, Sum>) {
      std::memcpy(to, &sum, sizeof(sum));
    } else if constexpr (std::is_same_v<T, c10::Half>) {
      Halves halves{};
      to_halves(sum, halves);
      std::memcpy(to, &halves, sizeof(halves));
    } else {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        to[lane] = static_cast<T>(sum[lane]);
      }
    }
  };
  std::int64_t at = begin;
  for (; at + kVectors * kLanes <= end; at += kVectors * kLanes) {
    Vector<Sum> sums[kVectors]{};
    for (std::int64_t i = 0; i < kVectors; ++i) {
      read(parts.front(), at + i * kLanes, sums[i]);
    }
    for (const std::byte* part : parts.subspan(1)) {
      for (std::int64_t i = 0; i < kVectors; ++i) {
        Vector<Sum> shares{};
        read(part, at + i * kLanes, shares);
        sums[i] += shares;
      }
    }
    for (std::byte* mean : means) {
      for (std::int64_t i = 0; i < kVectors; ++i) {
        write(mean, at + i * kLanes, sums[i]);
      }
    }
  }
  for (; at < end; ++at) {
    const auto share = [&](const std::byte* part) { return share_of(reinterpret_cast<const T*>(part)[at], factor); };
    Sum sum = share(parts.front());
    for (const std::byte* part : parts.subspan(1)) {
      sum += share(part);
    }
    for (std::byte* mean : means) {
      reinterpret_cast<T*>(mean)[at] = static_cast<T>(sum);
    }
  }
}

LOCKSTEP_VECTORIZED void write_floats(Means means, Parts parts, std::int64_t begin, std::int64_t end) noexcept {
  write_elements<float>(means, parts, begin, end);
}

LOCKSTEP_VECTORIZED void write_doubles(Means means, Parts parts, std::int64_t begin, std::int64_t end) noexcept {
  write_elements<double>(means, parts, begin, end);
}

LOCKSTEP_VECTORIZED void write_bfloats(Means means, Parts parts, std::int64_t begin, std::int64_t end) noexcept {
  write_elements<c10::BFloat16>(means, parts, begin, end);
}

LOCKSTEP_VECTORIZED void write_halves(Means means, Parts parts, std::int64_t begin, std::int64_t end) noexcept {
  write_elements<c10::Half>(means, parts, begin, end);
}

template <class T, auto write>
void write_mean(Means means, Parts parts, std::size_t bytes) {
  at::parallel_for(0, static_cast<std::int64_t>(bytes / sizeof(T)), kGrain,
                   [&](std::int64_t begin, std::int64_t end) { write(means, parts, begin, end); });
}

}  // namespace

WriteMean write_mean_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return &write_mean<float, write_floats>;
    case at::kDouble:
      return &write_mean<double, write_doubles>;
    case at::kHalf:
      return &write_mean<c10::Half, write_halves>;
    case at::kBFloat16:
      return &write_mean<c10::BFloat16, write_bfloats>;
    default:
      throw Error(fmt::format("--backend shm: gradients of dtype {} cannot be added", c10::toString(type)),
                  "use --backend gloo");
  }
}

namespace {

/// All views of the bucket are then there too. The last one of them releases the memory.
void move_bucket(const at::Tensor& bucket, std::byte* to, const std::shared_ptr<const SharedMemory>& memory) {
  std::memcpy(to, bucket.const_data_ptr(), bucket.nbytes());
  bucket.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(c10::InefficientStdFunctionContext::makeDataPtr(
      to, [memory](void*) {}, at::kCPU));
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

/// "": there is none.
std::string first_failure(const std::vector<std::string>& failures) {
  const auto first = std::ranges::find_if(failures, [](const std::string& text) { return !text.empty(); });
  return first == failures.end() ? std::string() : fmt::format("rank {}: {}", first - failures.begin(), *first);
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

struct Connection {
  std::unique_ptr<SharedReduction> reduction{};
  std::string failure{};  ///< the same on every rank, so that all give up together; "": there is none
};

Connection connect(World& world, std::vector<std::size_t> parts) {
  std::shared_ptr<const SharedMemory> memory;
  Introduction mine{.process = std::to_string(::getpid()), .cores = fmt::format("{}", fmt::join(allowed_cores(), " "))};
  if (world.is_main()) {
    mine.failure = failure_of([&] {
      memory = std::make_shared<SharedMemory>(SharedMemory::create(SharedReduction::bytes_needed(world.size(), parts)));
      mine.address = memory->address();
    });
  }
  SharedReduction::Options options{
      .rank = world.rank(), .parts = std::move(parts), .timeout = WorldAccess::timeout(world)};
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
  if (std::string failure = first_failure(failures); !failure.empty()) {
    return {.failure = std::move(failure)};
  }
  options.spins = cores.size() >= options.processes.size();
  std::unique_ptr<SharedReduction> reduction;
  const std::string failure = failure_of([&] {
    if (!memory) {
      memory = std::make_shared<SharedMemory>(SharedMemory::open(address));
    }
    reduction = std::make_unique<SharedReduction>(std::move(memory), std::move(options));
  });
  return {.reduction = std::move(reduction), .failure = first_failure(world.gather(failure))};
}

template <class Act>
auto as_backend_error(const Act& act) {
  try {
    return act();
  } catch (const SharedReductionFailed& error) {
    C10_THROW_ERROR(DistBackendError, error.what());
  }
}

/// Sparse buckets have no part.
std::vector<std::size_t> part_sizes(const std::vector<c10d::GradBucket>& buckets) {
  return mapped(buckets, [](const c10d::GradBucket& bucket) {
    return bucket.getBuffer().defined() ? bucket.getBuffer().nbytes() : 0;
  });
}

}  // namespace

std::unique_ptr<SharedMemoryHook> SharedMemoryHook::make(World& world, const std::vector<c10d::GradBucket>& buckets) {
  Connection connection = connect(world, part_sizes(buckets));
  if (connection.failure.empty()) {
    return std::unique_ptr<SharedMemoryHook>(
        new SharedMemoryHook(WorldAccess::group(world), std::move(connection.reduction), buckets));
  }
  if (!WorldAccess::leave_shared_memory(world, connection.failure)) {
    throw CommError(fmt::format("--backend shm: {}", connection.failure),
                    "the ranks must be processes of one user that see each other in /proc; else use --backend gloo",
                    ExitCode::usage);
  }
  return nullptr;
}

SharedMemoryHook::SharedMemoryHook(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                   std::unique_ptr<SharedReduction> reduction,
                                   const std::vector<c10d::GradBucket>& buckets)
    : group_(std::move(group)), reduction_(std::move(reduction)) {
  for (const c10d::GradBucket& bucket : buckets) {
    if (bucket.getBuffer().defined() && bucket.getBuffer().numel() > 0) {  // else there is nothing to move
      move_bucket(bucket.getBuffer(), reduction_->part(bucket.getIndex()), reduction_->memory());
    }
  }
}

c10::intrusive_ptr<c10::ivalue::Future> SharedMemoryHook::runHook(c10d::GradBucket& bucket) {
  const at::Tensor& full = bucket.getBuffer();
  const std::size_t index = next_++;
  if (full.is_sparse()) {
    return mean_over(*group_, full);
  }
  LOCKSTEP_ASSERT(full.numel() == 0 || full.const_data_ptr() == reduction_->part(index),
                  "the bucket is in the shared memory");
  reduction_->publish(index, write_mean_of(reals_of(full).scalar_type()));
  auto done = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  done->markCompleted(c10::IValue(full));
  return done;
}

void SharedMemoryHook::begin_backward() const {
  if (next_ != 0) {
    throw Error("--backend shm: the backward before was not completed, so the ranks have different gradients",
                "end the run when a backward throws");
  }
}

void SharedMemoryHook::finish() {
  as_backend_error([&] { reduction_->finish(); });
  next_ = 0;  // not after a failure: begin_backward() then refuses to go on
}

}  // namespace lockstep
