#include "probe/devices.h"

#include <chrono>
#include <cstdint>
#include <set>
#include <string>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "base/duration.h"

namespace lockstep {
namespace {

constexpr std::int64_t kCopyBytes = 64 << 20;

std::string check_kernel(c10::Device device) {
  constexpr double kLimit = 1e-10;
  const at::Tensor a = at::arange(256 * 256, at::kDouble).mul(0.37).sin().reshape({256, 256});
  const double difference = (a.to(device).mm(a.to(device)).cpu() - a.mm(a)).abs().max().item<double>();
  return difference <= kLimit
             ? ""
             : fmt::format("a matrix product on {} differs from that of the CPU by {:.1e}", device.str(), difference);
}

/// Copies with `copy`, waits for the result, and returns the time of the second copy: the first one allocates.
template <class Copy>
double time_of(const at::Tensor& from, const Copy& copy, at::Tensor& result) {
  double seconds = 0;
  for (int i = 0; i < 2; ++i) {
    const auto start = std::chrono::steady_clock::now();
    result = copy(from);
    result.flatten()[0].item<std::uint8_t>();
    seconds = seconds_since(start);
  }
  return seconds;
}

}  // namespace

void check_devices(Session& session, Results& results) {
  World& world = session.world;
  const c10::Device mine = world.device();
  const at::Tensor host = at::arange(kCopyBytes).remainder(251).to(at::kByte);
  results.check("kernel", [&] { return check_kernel(mine); });
  double up = 0;
  double down = 0;
  results.check("copy", [&] {
    at::Tensor there;
    at::Tensor back;
    up = time_of(
        host, [&](const at::Tensor& from) { return from.to(mine); }, there);
    down = time_of(
        there, [](const at::Tensor& from) { return from.cpu(); }, back);
    return back.equal(host) ? "" : fmt::format("{} bytes came back from {} changed", kCopyBytes, mine.str());
  });
  results.measured("copy", {{"bytes", kCopyBytes}, {"to_device_seconds", up}, {"to_host_seconds", down}});

  const std::string node = fmt::format("{} ", world.node());
  std::set<int> indices;  // CUDA's own numbers of this node's GPUs
  for (const std::string& of_rank : world.gather(fmt::format("{}{}", node, mine.index()))) {
    if (of_rank.starts_with(node)) {
      indices.insert(std::stoi(of_rank.substr(node.size())));
    }
  }
  // Rank after rank, so that the copies do not share their way.
  Json times = Json::array();
  results.check("pairs", [&] {
    std::string problem;
    const at::Tensor here = host.to(mine);
    world.one_by_one("copies between GPUs", [&] {
      for (const int index : indices) {
        const c10::Device other(mine.type(), static_cast<c10::DeviceIndex>(index));
        if (other == mine) {
          continue;
        }
        at::Tensor there;
        const double seconds = time_of(
            here, [&](const at::Tensor& from) { return from.to(other); }, there);
        times.push_back({{"from", mine.index()}, {"to", other.index()}, {"seconds", seconds}});
        if (!there.cpu().equal(host)) {
          problem = fmt::format("{} bytes arrived changed from {} on {}", kCopyBytes, mine.str(), other.str());
        }
      }
    });
    return problem;
  });
  Json pairs = Json::array();
  for (const std::string& of_rank : world.gather(times.dump())) {
    pairs.push_back(Json::parse(of_rank));
  }
  results.measured("pairs", {{"bytes", kCopyBytes}, {"times", std::move(pairs)}});
}

}  // namespace lockstep
