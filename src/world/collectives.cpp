#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <numeric>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>

#include <lockstep/base/error.h>

#include "base/mapped.h"
#include "base/splitmix.h"
#include "base/text.h"
#include "tensor/tensor_bytes.h"
#include "world/agreement.h"
#include "world/gather_values.h"
#include "world/operation_notes.h"
#include "world/out_of_memory.h"
#include "world/peer_errors.h"
#include "world/turns.h"
#include "world/world_impl.h"

namespace lockstep {
namespace {

std::int64_t byte_count(const at::Tensor& tensor) { return static_cast<std::int64_t>(tensor.nbytes()); }

std::string to_bytes(const at::Tensor& tensor, std::int64_t size) {
  return std::string(text_of_bytes(tensor).substr(0, static_cast<std::size_t>(size)));
}

/// A tensor as a backend can send it. Results are written to `dense` and then have to be stored.
struct Sendable {
  explicit Sendable(const at::Tensor& tensor) : dense(tensor.detach().resolve_conj().resolve_neg().contiguous()) {}
  /// Not every backend sends every dtype.
  at::Tensor bytes() const { return dense.flatten().view(at::kByte); }
  void store_in(const at::Tensor& tensor) const {
    if (!dense.is_alias_of(tensor)) {
      tensor.copy_(dense);
    }
  }

  at::Tensor dense;
};

std::int64_t digest_of(std::string_view text) {
  std::uint64_t digest = text.size();
  for (; !text.empty(); text.remove_prefix(std::min(text.size(), sizeof digest))) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data(), std::min(text.size(), sizeof word));
    digest = splitmix(digest ^ word);
  }
  return static_cast<std::int64_t>(digest);
}

double combine(double a, double b, Reduce op) {
  if (op == Reduce::sum || op == Reduce::mean || std::isnan(a) || std::isnan(b)) {
    return a + b;
  }
  return op == Reduce::min ? std::min(a, b) : std::max(a, b);
}

/// Collective. The size of dimension 0 on each rank. Throws: CommError if the ranks' tensors differ in more than that.
std::vector<std::int64_t> rows_of_ranks(const at::Tensor& tensor, World& world) {
  std::vector<std::int64_t> rows;
  std::vector<std::string> kinds;
  const std::string kind = fmt::format("{} of [*{}{}]", c10::toString(tensor.scalar_type()),
                                       tensor.dim() > 1 ? ", " : "", fmt::join(tensor.sizes().slice(1), ", "));
  for (const std::string& of_rank : world.gather(fmt::format("{} {}", tensor.size(0), kind))) {
    const auto space = of_rank.find(' ');
    rows.push_back(parse_int(of_rank.substr(0, space)).value_or(0));
    kinds.push_back(of_rank.substr(space + 1));
  }
  if (const auto found = find_disagreement(kinds)) {
    throw_about_rank(found->rank, world,
                     CommError(fmt::format("all_gather: rank {} has a tensor {}, {} {}", found->rank, found->found,
                                           found->others, found->expected),
                               "the tensors of the ranks may differ in dimension 0 only", ExitCode::disagree));
  }
  return rows;
}

// What follows is checked before a rank waits for others. Throw: Error.

void check_tensor(std::string_view what, const at::Tensor& tensor) {
  const auto refuse = [&](const char* found, const char* hint) {
    throw Error(fmt::format("{}: found {}, expected a dense tensor with values", what, found), hint);
  };
  if (!tensor.defined()) {
    refuse("an undefined tensor", "give it a tensor on every rank; one of zeros if this rank has no values");
  }
  if (tensor.layout() != at::kStrided) {
    refuse("a sparse tensor", "give it tensor.to_dense()");
  }
  if (tensor.is_meta()) {
    refuse("a tensor on the meta device", "give it a tensor on the device of this rank, World::device()");
  }
}

/// For a tensor that gets the result.
void check_in_place(std::string_view what, const at::Tensor& tensor) {
  check_tensor(what, tensor);
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    throw Error(
        fmt::format("{}: found an expanded tensor, expected one with memory for each element of the result", what),
        "give it tensor.clone(), which then has the result");
  }
}

void check_root(std::string_view what, int root, int size) {
  if (root < 0 || root >= size) {
    throw Error(fmt::format("{}: found root {}, expected a rank from 0 to {}", what, root, size - 1),
                "the root is the rank whose values all ranks get; rank 0 is the default");
  }
}

/// Whether the backends can reduce the tensor.
void check_reducible(const at::Tensor& tensor, Reduce op) {
  check_in_place("all-reduce", tensor);
  const at::ScalarType type = tensor.scalar_type();
  const bool orders = op == Reduce::min || op == Reduce::max;
  const bool is_floating = type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16;
  const bool is_integer = type == at::kLong || type == at::kInt || type == at::kChar || type == at::kByte;
  const bool is_complex = type == at::kComplexFloat || type == at::kComplexDouble;
  if (!is_floating && !(is_integer && op != Reduce::mean) && !(is_complex && !orders) &&
      !(type == at::kBool && orders)) {
    throw Error(fmt::format("all-reduce: a tensor of dtype {} has no {}", c10::toString(type),
                            op == Reduce::sum    ? "sum"
                            : op == Reduce::mean ? "mean"
                            : op == Reduce::min  ? "minimum"
                                                 : "maximum"),
                is_complex ? "reduce its real and imaginary parts"
                           : "convert it first, e.g. with to(at::kInt) or to(at::kFloat)");
  }
}

}  // namespace

// After a failure the operation stays in the record, because it shows where this rank is.
void World::Impl::checked(std::string_view what, Operation operation, std::int64_t bytes,
                          const std::function<void()>& work) {
  progress->begin(operation, bytes);
  try {
    check_device();
    work();
    progress->end();
  } catch (const std::exception& error) {
    const bool is_about_others = is_peer_failure(error) || dynamic_cast<const CommError*>(&error) != nullptr;
    if (!is_about_others || is_out_of_memory(error)) {  // of this rank itself
      throw;
    }
    const std::string missing = missing_ranks(store, place.size, operations);
    throw CommError(fmt::format("{} failed on rank {} of {}: {}{}", what, place.rank, place.size, plain_text(error),
                                missing.empty() ? "" : "; missing ranks: " + missing),
                    kPeerHint);
  }
}

void World::Impl::control(std::string_view what, Operation operation, std::int64_t bytes,
                          const std::function<void()>& work) {
  checked(what, operation, bytes, [&] {
    write_operation_note(*store, place.rank, ++operations, what);
    work();
  });
}

std::vector<std::string> World::Impl::gather(std::string_view what, std::string_view bytes) {
  if (alone()) {
    return {std::string(bytes)};
  }
  std::vector<std::string> all;
  control(what, Operation::gather, static_cast<std::int64_t>(bytes.size()), [&] {
    const auto count = static_cast<std::size_t>(place.size);
    auto mine = at::full({1}, static_cast<std::int64_t>(bytes.size()), at::kLong);
    std::vector<std::vector<at::Tensor>> sizes(1);
    for (std::size_t rank = 0; rank < count; ++rank) {
      sizes[0].push_back(at::empty({1}, at::kLong));
    }
    std::vector<at::Tensor> input{mine};
    planes->group()->allgather(sizes, input)->wait();
    std::int64_t longest = 0;
    for (const auto& size : sizes[0]) {
      longest = std::max(longest, size.item<std::int64_t>());
    }
    auto padded = at::zeros({longest}, at::kByte);
    padded.narrow(0, 0, static_cast<std::int64_t>(bytes.size())).copy_(bytes_tensor(bytes));
    std::vector<std::vector<at::Tensor>> outputs(1);
    for (std::size_t rank = 0; rank < count; ++rank) {
      outputs[0].push_back(at::empty({longest}, at::kByte));
    }
    std::vector<at::Tensor> sent{padded};
    planes->group()->allgather(outputs, sent)->wait();
    for (std::size_t rank = 0; rank < count; ++rank) {
      all.push_back(to_bytes(outputs[0][rank], sizes[0][rank].item<std::int64_t>()));
    }
  });
  return all;
}

std::vector<std::int64_t> World::Impl::control_all_reduce(std::string_view what, Operation operation,
                                                          const std::vector<std::int64_t>& values, c10d::ReduceOp op,
                                                          std::chrono::milliseconds longest) {
  const at::Tensor tensor = at::tensor(values, at::kLong);
  control(what, operation, 0, [&] {
    std::vector<at::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    options.timeout = longest;
    planes->group()->allreduce(tensors, options)->wait();
  });
  const auto* const reduced = tensor.const_data_ptr<std::int64_t>();
  return {reduced, reduced + values.size()};
}

void World::Impl::take_turn(std::string_view what, std::optional<int> after, const std::function<void()>& work) {
  if (alone()) {
    work();
    return;
  }
  lockstep::take_turn({.store = *store, .number = ++operations, .rank = place.rank, .size = place.size, .after = after},
                      what, *progress, work);
}

void World::all_reduce(const at::Tensor& tensor, Reduce op) {
  check_reducible(tensor, op);
  if (impl_->alone()) {
    return;
  }
  const at::NoGradGuard no_grad;
  impl_->checked("all-reduce", Operation::all_reduce, byte_count(tensor), [&] {
    const Sendable sent(tensor);
    std::vector<at::Tensor> tensors{sent.dense.is_complex() ? at::view_as_real(sent.dense) : sent.dense};
    const bool divides_first = op == Reduce::mean && tensor.scalar_type() == at::kHalf;  // the sum may be too large
    if (divides_first) {
      tensors[0].div_(size());
    }
    c10d::AllreduceOptions options;
    switch (op) {
      case Reduce::sum:
      case Reduce::mean:
        options.reduceOp = c10d::ReduceOp::SUM;
        break;
      case Reduce::min:
        options.reduceOp = c10d::ReduceOp::MIN;
        break;
      case Reduce::max:
        options.reduceOp = c10d::ReduceOp::MAX;
        break;
    }
    impl_->planes->group()->allreduce(tensors, options)->wait();
    if (op == Reduce::mean && !divides_first) {
      tensors[0].div_(size());
    }
    sent.store_in(tensor);
  });
}

void World::broadcast(const at::Tensor& tensor, int root) {
  check_in_place("broadcast", tensor);
  check_root("broadcast", root, size());
  if (impl_->alone() || tensor.numel() == 0) {
    return;
  }
  const at::NoGradGuard no_grad;
  impl_->checked("broadcast", Operation::broadcast, byte_count(tensor), [&] {
    const Sendable sent(tensor);
    std::vector<at::Tensor> tensors{sent.bytes()};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    impl_->planes->group()->broadcast(tensors, options)->wait();
    sent.store_in(tensor);
  });
}

double World::all_reduce(double value, Reduce op) {
  std::optional<double> result;
  for (const double of_rank : gather_value(*this, value)) {
    result = result ? combine(*result, of_rank, op) : of_rank;  // in the order of the ranks, on each of them
  }
  return op == Reduce::mean ? *result / size() : *result;
}

at::Tensor World::all_gather(const at::Tensor& tensor) { return WorldAccess::all_gather(*this, tensor).all; }

GatheredRows WorldAccess::all_gather(World& world, const at::Tensor& tensor) {
  World::Impl& impl = *world.impl_;
  check_tensor("all_gather", tensor);
  if (tensor.dim() == 0) {
    throw Error("all_gather: found a tensor without dimensions, expected one with rows", "use tensor.view({1})");
  }
  if (impl.alone()) {
    return {.all = tensor.detach().clone()};
  }
  const std::vector<std::int64_t> rows = rows_of_ranks(tensor, world);
  const at::NoGradGuard no_grad;
  const std::int64_t longest = *std::max_element(rows.begin(), rows.end());
  auto shape = tensor.sizes().vec();
  shape[0] = longest;
  std::vector<at::Tensor> parts;
  const auto bytes = c10::multiply_integers(shape) * static_cast<std::int64_t>(tensor.element_size());
  impl.checked("all-gather", Operation::all_gather, bytes, [&] {
    auto padded = at::zeros(shape, tensor.options());
    padded.narrow(0, 0, tensor.size(0)).copy_(tensor);
    std::vector<at::Tensor> input{Sendable(padded).bytes()};
    std::vector<std::vector<at::Tensor>> outputs(1);
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      outputs[0].push_back(at::empty_like(input[0]));
    }
    if (input[0].numel() > 0) {
      impl.planes->group()->allgather(outputs, input)->wait();
    }
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      parts.push_back(outputs[0][rank].view(tensor.scalar_type()).view(shape).narrow(0, 0, rows[rank]));
    }
  });
  return {.all = at::cat(parts), .first = std::accumulate(rows.begin(), rows.begin() + world.rank(), std::int64_t{0})};
}

void World::barrier(std::string_view what) {
  if (!impl_->alone()) {
    impl_->control_all_reduce(fmt::format("barrier '{}'", what), Operation::barrier, {0}, c10d::ReduceOp::SUM);
  }
}

bool World::any(bool value) {
  return impl_->alone() ? value
                        : impl_->control_all_reduce("any", Operation::any, {value}, c10d::ReduceOp::MAX).front() != 0;
}

bool WorldAccess::any_without_timeout(World& world, bool value) {
  constexpr std::chrono::hours kNoLimit{24 * 365};
  World::Impl& impl = *world.impl_;
  return impl.alone()
             ? value
             : impl.control_all_reduce("waiting for callbacks", Operation::any, {value}, c10d::ReduceOp::MAX, kNoLimit)
                       .front() != 0;
}

void WorldAccess::run_as_callback(World& world, std::string_view name, std::string_view where,
                                  const std::function<void()>& work) {
  {
    const PhaseScope phase(progress(world), name, where);
    work();
  }
  any_without_timeout(world, false);
}

bool World::all(bool value) {
  return impl_->alone() ? value
                        : impl_->control_all_reduce("all", Operation::all, {value}, c10d::ReduceOp::MIN).front() != 0;
}

// All have the same number if the largest is also the smallest: the complement of the largest complement.
bool WorldAccess::all_equal(World& world, std::string_view text) {
  World::Impl& impl = *world.impl_;
  if (impl.alone()) {
    return true;
  }
  const std::int64_t mine = digest_of(text);
  const auto largest = impl.control_all_reduce("comparison", Operation::all, {mine, ~mine}, c10d::ReduceOp::MAX);
  return largest[0] == ~largest[1];
}

std::vector<std::string> World::gather(std::string_view bytes) { return impl_->gather("gather", bytes); }

std::string World::broadcast_bytes(std::string_view bytes, int root) {
  check_root("broadcast of bytes", root, size());
  if (impl_->alone()) {
    return std::string(bytes);
  }
  std::string result;
  impl_->control("broadcast of bytes", Operation::bytes, static_cast<std::int64_t>(bytes.size()), [&] {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<at::Tensor> size{at::full({1}, static_cast<std::int64_t>(bytes.size()), at::kLong)};
    impl_->planes->group()->broadcast(size, options)->wait();
    const auto length = size[0].item<std::int64_t>();
    std::vector<at::Tensor> data{rank() == root ? bytes_tensor(bytes) : at::empty({length}, at::kByte)};
    if (length > 0) {
      impl_->planes->group()->broadcast(data, options)->wait();
    }
    result = to_bytes(data[0], length);
  });
  return result;
}

void World::main_first(std::string_view what, const std::function<void()>& work) {
  impl_->take_turn(what, is_main() ? std::nullopt : std::optional(0), work);
}

void World::one_by_one(std::string_view what, const std::function<void()>& work) {
  impl_->take_turn(what, is_main() ? std::nullopt : std::optional(rank() - 1), work);
}

}  // namespace lockstep
