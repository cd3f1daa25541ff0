// What each rank pays for the others, for scaling_bench.py: CPU time, because many ranks share few cores here.
#include <chrono>
#include <functional>
#include <string>

#include <fmt/format.h>
#include <time.h>

#include <lockstep/lockstep.h>

namespace {

double cpu_us() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

double wall_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Cost {
  double rank0 = 0;   ///< CPU microseconds of rank 0, which serves the store
  double others = 0;  ///< the mean of the others
  double wall = 0;
};

/// Of one call, the mean of `count`.
Cost measure(lockstep::World& world, int count, const std::function<void()>& call) {
  world.barrier("before");
  const double cpu = cpu_us();
  const double wall = wall_us();
  for (int i = 0; i < count; ++i) {
    call();
  }
  world.barrier("after");  // rank 0 serves the store until the last rank is done
  const double wall_end = wall_us();
  const auto all = world.gather(fmt::format("{}", (cpu_us() - cpu) / count));
  Cost cost{.rank0 = std::stod(all[0]), .wall = (wall_end - wall) / count};
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    cost.others += std::stod(all[rank]) / static_cast<double>(all.size() - 1);
  }
  return cost;
}

std::string json(const char* name, const Cost& cost) {
  return fmt::format(R"("{}": [{:.1f}, {:.1f}, {:.1f}])", name, cost.rank0, cost.others, cost.wall);
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::TrainConfig defaults{};
  defaults.dist.stall_warn_s = 0;
  defaults.dist.stall_timeout_s = 0;
  return lockstep::run(defaults, argc, argv, [](lockstep::Session& session) {
    auto& world = session.world;
    const double start = cpu_us();
    const auto starts = world.gather(fmt::format("{}", start));
    Cost started{.rank0 = start};
    for (std::size_t rank = 1; rank < starts.size(); ++rank) {
      started.others += std::stod(starts[rank]) / static_cast<double>(starts.size() - 1);
    }
    const std::string place(120, 'x');  // as long as what the search for a slow rank sends
    const auto store = world.store("scaling");
    const Cost gather = measure(world, 30, [&] { static_cast<void>(world.gather(place)); });
    const Cost barrier = measure(world, 30, [&] { world.barrier("barrier"); });
    const Cost question = measure(world, 300, [&] { store->check("no such key"); });
    const Cost channel = measure(world, 2, [&] { world.channel("scaling"); });
    session.print(fmt::format("{{\"ranks\": {}, {}, {}, {}, {}, {}}}", world.size(), json("start", started),
                              json("gather", gather), json("barrier", barrier), json("question", question),
                              json("channel", channel)));
  });
}
