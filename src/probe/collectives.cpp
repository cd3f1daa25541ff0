#include "probe/collectives.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <lockstep/parallel/strategy.h>

#include "base/duration.h"
#include "base/median.h"

namespace lockstep {
namespace {

constexpr std::int64_t kPeriod = 1000;  // sums of the numbers below are exact in float32

/// 0, 1, ... 999, 0, 1, ..., plus the rank.
at::Tensor numbers(std::int64_t count, int rank, at::TensorOptions options) {
  return at::arange(count, options).remainder(kPeriod).add(rank);
}

/// "": they are equal.
std::string difference(std::string_view what, const at::Tensor& found, const at::Tensor& expected) {
  if (found.sizes() != expected.sizes()) {
    return fmt::format("{}: found {} numbers, expected {}", what, found.numel(), expected.numel());
  }
  const at::Tensor differs = found.cpu().ne(expected.cpu());
  if (!differs.any().item<bool>()) {
    return {};
  }
  const auto first = differs.flatten().to(at::kByte).argmax().item<std::int64_t>();
  return fmt::format("{}: {} of {} numbers differ, the first is number {}: found {}, expected {}", what,
                     differs.sum().item<std::int64_t>(), found.numel(), first, found.flatten()[first].item<double>(),
                     expected.flatten()[first].item<double>());
}

std::string first_of(const std::vector<std::string>& problems) {
  const auto found = std::find_if(problems.begin(), problems.end(), [](const auto& text) { return !text.empty(); });
  return found == problems.end() ? std::string() : *found;
}

std::string check_all_reduce(World& world, bool is_falsified) {
  const int ranks = world.size();
  std::vector<std::string> problems;
  for (const auto type : {at::kFloat, at::kDouble, at::kLong}) {
    const at::TensorOptions options = at::TensorOptions(world.device()).dtype(type);
    for (const std::int64_t count : {std::int64_t{1}, std::int64_t{1000}, std::int64_t{100'000}}) {
      const at::Tensor base = numbers(count, 0, options);
      const std::pair<Reduce, at::Tensor> cases[] = {{Reduce::sum, base * ranks + ranks * (ranks - 1) / 2},
                                                     {Reduce::min, base},
                                                     {Reduce::max, base + (ranks - 1)}};
      for (const auto& [op, expected] : cases) {
        at::Tensor mine = numbers(count, world.rank(), options);
        if (is_falsified) {
          mine[count / 2].add_(ranks);
        }
        world.all_reduce(mine, op);
        const char* name = op == Reduce::sum ? "sum" : op == Reduce::min ? "min" : "max";
        problems.push_back(difference(fmt::format("{} of {} {}", name, count, c10::toString(type)), mine, expected));
      }
    }
  }
  return first_of(problems);
}

std::string check_broadcast(World& world) {
  const auto options = at::TensorOptions(world.device()).dtype(at::kFloat);
  std::vector<std::string> problems;
  for (int root = 0; root < world.size(); ++root) {
    const at::Tensor mine = numbers(kPeriod * 10, world.rank(), options);
    world.broadcast(mine, root);
    problems.push_back(difference(fmt::format("from rank {}", root), mine, numbers(kPeriod * 10, root, options)));
  }
  return first_of(problems);
}

/// Rank r sends r + 1 rows.
std::string check_all_gather(World& world) {
  const auto options = at::TensorOptions(world.device()).dtype(at::kFloat);
  const auto rows = [&](int rank) { return numbers((rank + 1) * kPeriod, rank, options).reshape({rank + 1, kPeriod}); };
  std::vector<at::Tensor> expected;
  for (int rank = 0; rank < world.size(); ++rank) {
    expected.push_back(rows(rank));
  }
  return difference("rows of all ranks", world.all_gather(rows(world.rank())), at::cat(expected));
}

/// Values of the host, which take another way than tensors.
std::string check_messages(World& world) {
  const int last = world.size() - 1;
  if (world.any(false) || !world.any(world.rank() == last) || !world.all(true) || world.all(world.rank() != last)) {
    return "any() or all() is wrong";
  }
  const auto text_of = [](int rank) { return std::string(static_cast<std::size_t>(rank) * 1000, 'x') + "end"; };
  const std::vector<std::string> texts = world.gather(text_of(world.rank()));
  for (int rank = 0; rank <= last; ++rank) {
    if (texts.at(static_cast<std::size_t>(rank)) != text_of(rank) ||
        world.broadcast_bytes(text_of(world.rank()), rank) != text_of(rank)) {
      return fmt::format("the bytes of rank {} arrived changed", rank);
    }
  }
  int calls = 0;
  world.main_first("test", [&] { ++calls; });
  world.barrier("test");
  return calls == 1 ? "" : "main_first() did not run its work once";
}

struct OneParameter : torch::nn::Module {
  explicit OneParameter(const at::Tensor& values) : parameter(register_parameter("parameter", values)) {}
  at::Tensor parameter;
};

struct Exchange {
  double seconds = 0;
  std::string problem{};
};

Exchange exchange(Session& session, std::int64_t bytes, int repeats, bool is_falsified) {
  constexpr int kWarmUp = 2;
  World& world = session.world;
  const auto options = at::TensorOptions(world.device()).dtype(at::kFloat);
  const auto count = bytes / static_cast<std::int64_t>(sizeof(float));
  OneParameter module(at::zeros({count}, options));
  const auto strategy = make_strategy(session.plan, world);
  const OptimizerSpec spec(sgd());
  strategy->prepare(module, {&spec, 1});
  StrategyOptimizer& optimizer = strategy->optimizer();
  const at::Tensor mine = numbers(count, world.rank(), options);
  if (is_falsified) {
    mine[count / 2].add_(1);
  }
  std::vector<double> times;
  for (int i = 0; i < kWarmUp + repeats; ++i) {
    strategy->begin_step(i);
    optimizer.zero_grad();
    optimizer.begin_forward(Gradients::reduce);
    const at::Tensor loss = (module.parameter * mine).sum();
    const auto start = std::chrono::steady_clock::now();
    optimizer.backward(loss);
    optimizer.finish();
    module.parameter.grad()[0].item<float>();  // waits for a GPU
    times.push_back(seconds_since(start));
    static_cast<void>(strategy->agreed());
  }
  times.erase(times.begin(), times.begin() + kWarmUp);
  const at::Tensor mean = numbers(count, 0, options) + 0.5 * (world.size() - 1);
  const at::Tensor found = module.parameter.grad();
  // The mean of integers is exact, but the order of sum and division is not given.
  const bool is_right = at::allclose(found, mean, /*rtol=*/1e-6, /*atol=*/0);
  return {.seconds = median(std::move(times)),
          .problem = is_right ? "" : difference(fmt::format("mean of {} bytes", bytes), found, mean)};
}

}  // namespace

void check_collectives(World& world, Results& results) {
  results.check("all_reduce", [&] { return check_all_reduce(world, results.is_falsified("all_reduce")); });
  results.check("broadcast", [&] { return check_broadcast(world); });
  results.check("all_gather", [&] { return check_all_gather(world); });
  results.check("messages", [&] { return check_messages(world); });
}

void check_gradients(Session& session, Results& results) {
  constexpr std::pair<std::int64_t, int> kSizes[] = {
      {4 << 10, 50}, {64 << 10, 30}, {1 << 20, 10}, {16 << 20, 3}};  // bytes, repeats
  std::vector<std::string> problems;
  Json times = Json::array();
  results.check("gradients", [&] {
    for (const auto& [bytes, repeats] : kSizes) {
      Exchange done = exchange(session, bytes, repeats, results.is_falsified("gradients"));
      times.push_back({{"bytes", bytes}, {"seconds", done.seconds}});
      problems.push_back(std::move(done.problem));
    }
    return first_of(problems);
  });
  results.measured("exchange", {{"times", std::move(times)}});
}

}  // namespace lockstep
