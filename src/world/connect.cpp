#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/base/variables.h>
#include <lockstep/plan/plan.h>

#include "base/duration.h"
#include "base/mapped.h"
#include "base/text.h"
#include "environment/nodes.h"
#include "environment/process_name.h"
#include "world/agreement.h"
#include "world/peer_errors.h"
#include "world/rank_device.h"
#include "world/rendezvous.h"
#include "world/world_impl.h"

namespace lockstep {
namespace {

/// "cuda:1 NVIDIA H100 GPU-1234"
std::string device_text(const LocalDevice& device) {
  return device.id.gpu ? fmt::format("{} {} {}", to_string(device.id), device.name, device.uuid) : std::string("CPU");
}

}  // namespace

void World::Impl::begin(const Plan& plan, const Identity& identity, const DeviceId& chosen) {
  if (identity.progress_fd >= 0) {
    const auto board = std::make_shared<ProgressBoard>(identity.progress_fd, identity.local_rank);
    progress = {board, &(*board)[identity.local_rank]};
    progress->set_stall_limits(to_milliseconds(plan.config.dist.stall_warn_s),
                               to_milliseconds(plan.config.dist.stall_timeout_s));
  }
  place = {.rank = identity.rank,
           .size = identity.world_size,
           .local_rank = identity.local_rank,
           .local_size = identity.local_world_size,
           .node = identity.node,
           .nodes = identity.nodes};
  device = chosen.gpu ? c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(chosen.index)) : c10::Device(c10::kCPU);
}

void World::Impl::connect_control_plane() {
  if (!alone()) {
    planes.emplace(store, place, timeout);
  }
}

// Note [Shared memory of auto]: with --backend auto, a rank on the CPU plans for shared memory if its launcher shows
// one machine. The ranks agree on Gloo if they find several machines in the rendezvous, if one cannot have the memory,
// which they know only when they build a reducer, or if the checkpoint was written with Gloo. So nothing depends on
// what a plan cannot know. Whoever asks for shm gets it or an error.
void World::Impl::connect_data_plane(c10::Device on, Backend asked) {
  device = on;
  may_leave_shared_memory = asked == Backend::automatic;
  backend = may_leave_shared_memory ? Backend::shm : asked;
  if (planes && device.is_cuda()) {
    planes->connect_gpu(device, backend);
  }
}

std::string World::Impl::learn_nodes(const Identity& identity, bool wants_memory) {
  std::vector<std::string> texts;
  try {  // the first exchange, so here the ranks connect
    texts = gather("gather of nodes",
                   fmt::format("{} {} {} {}", identity.local_rank, identity.node_is_guess ? -1 : identity.node,
                               wants_memory ? 1 : 0, host_name()));
  } catch (const CommError& error) {
    throw CommError(error.what(),
                    fmt::format("check that the nodes reach each other, and GLOO_SOCKET_IFNAME; or {}", kPeerHint));
  }
  std::vector<NodeClaim> claims;
  std::string refusal;
  for (const std::string& theirs : texts) {
    const auto words = split(theirs, ' ');
    if (words.at(2) != "1" && refusal.empty()) {
      refusal = fmt::format("rank {} plans another backend", claims.size());
    }
    claims.push_back({.local_rank = static_cast<int>(parse_int(words.at(0)).value_or(0)),
                      .node = static_cast<int>(parse_int(words.at(1)).value_or(-1)),
                      .host = words.at(3)});
  }
  const std::vector<NodePlace> on_nodes = place_on_nodes(claims);
  const NodePlace mine = on_nodes.at(static_cast<std::size_t>(place.rank));
  place.node = mine.node;
  place.nodes = mine.nodes;
  place.local_size = mine.local_size;
  const auto other =
      std::ranges::find_if(on_nodes, [&](const NodePlace& of) { return of.node != on_nodes.front().node; });
  return other == on_nodes.end() ? refusal
                                 : fmt::format("rank {} is on another machine than rank 0", other - on_nodes.begin());
}

World WorldAccess::make(const c10::intrusive_ptr<c10d::Store>& store, const RankCoordinates& place, c10::Device device,
                        Backend backend, std::chrono::milliseconds timeout) {
  auto impl = std::make_unique<World::Impl>();
  impl->place = place;
  impl->timeout = timeout;
  impl->store = store;
  impl->connect_control_plane();
  impl->connect_data_plane(device, backend);
  return World(std::move(impl));
}

World World::connect(const Plan& plan, const Identity& identity) { return WorldAccess::connect(plan, identity, {}); }

void WorldAccess::connect_planes(World& world, const Plan& plan, const Identity& identity, const RankPlace& place,
                                 std::string_view gpu) {
  World::Impl& impl = *world.impl_;
  impl.connect_control_plane();
  const bool shares_by_itself =
      plan.config.backend == Backend::shm && plan.asked && plan.asked->backend == Backend::automatic;
  const std::string refusal = impl.learn_nodes(identity, plan.config.backend == Backend::shm);
  TrainConfig compared = plan.config;
  if (shares_by_itself) {
    compared.backend = Backend::gloo;  // what ranks may plan whose launcher shows them several machines
  }
  impl.places = agree_at_start(compared, gpu, world, place);
  impl.connect_data_plane(impl.device, shares_by_itself ? Backend::automatic : plan.config.backend);
  if (shares_by_itself && !refusal.empty()) {
    leave_shared_memory(world, refusal);
  }
}

World WorldAccess::connect(const Plan& plan, const Identity& identity,
                           const std::function<void(const World&)>& on_rendezvous) {
  const auto local = static_cast<std::size_t>(identity.local_rank);
  if (local >= plan.local_devices.size()) {
    throw ConfigError(
        fmt::format(
            "World::connect: found local rank {}, expected less than {}, the number of local devices of the plan",
            identity.local_rank, plan.local_devices.size()),
        "resolve the plan with the same identity");
  }
  const LocalDevice& chosen = plan.local_devices[local];
  set_log_rank(identity.rank, identity.world_size);
  World world(std::make_unique<World::Impl>());
  World::Impl& impl = *world.impl_;
  impl.begin(plan, identity, chosen.id);
  const PhaseScope phase(*impl.progress, impl.alone() ? Phase::start : Phase::rendezvous);
  JoinedStore joined;
  if (!impl.alone()) {
    joined = rendezvous(identity, to_milliseconds(plan.config.dist.init_timeout_s));
    impl.store = std::move(joined.store);
    impl.progress->set_phase(Phase::rendezvous);  // the ranks have connected; the following work has a separate limit
  }
  if (on_rendezvous) {
    on_rendezvous(world);
  }
  if (chosen.id.gpu) {
    if (plan.config.deterministic != Determinism::off) {
      impl.deterministic_cuda.emplace();
    }
    impl.device = start_gpu(impl.device, mapped(plan.local_devices, &LocalDevice::uuid), local);
  }
  const RankPlace place{.host = plan.host, .device = device_text(chosen), .pid = getpid()};
  if (impl.alone()) {
    impl.places = {place};
    return world;
  }
  impl.timeout = to_milliseconds(plan.config.dist.timeout_s);
  const Variables environment = read_environment();
  if (impl.place.local_size < impl.place.size || identity.local_size_is_guess) {
    impl.place.address = joined.address;
    impl.place.interfaces = environment.get("GLOO_SOCKET_IFNAME").value_or("");
  }
  try {
    // NCCL identifies the host by this variable.
    const std::string gpu = chosen.uuid.empty() ? "" : chosen.uuid + environment.get("NCCL_HOSTID").value_or("");
    connect_planes(world, plan, identity, place, gpu);
    return world;
  } catch (const Error&) {
    throw;
  } catch (const std::system_error&) {
    throw;  // this machine failed, for example it cannot make a thread: the network is not the cause
  } catch (const std::exception& error) {
    throw CommError(fmt::format("rank {} cannot connect to the other ranks: {}", identity.rank, plain_text(error)),
                    "check that the nodes reach each other, and GLOO_SOCKET_IFNAME / NCCL_SOCKET_IFNAME");
  }
}

World World::single(c10::Device device) {
  if (device.is_cuda()) {
    device = start_gpu(device, /*uuids=*/{}, /*local=*/0);
  }
  return WorldAccess::make({}, {}, device, Backend::gloo, {});
}

World World::channel(std::string_view purpose) {
  if (!impl_->alone()) {
    return WorldAccess::connect_again(*this, purpose, c10::Device(c10::kCPU), Backend::gloo);
  }
  World made = single(c10::Device(c10::kCPU));
  made.impl_->start_directory = impl_->start_directory;
  return made;
}

World WorldAccess::second(World& world, std::string_view purpose) {
  const World::Impl& impl = *world.impl_;
  World made = connect_again(world, purpose, impl.device, impl.planes->has_nccl() ? Backend::nccl : Backend::gloo);
  made.impl_->progress = impl.progress;
  return made;
}

World& WorldAccess::of_backwards(World& world) {
  std::optional<World>& made = world.impl_->of_backwards;
  if (!world.impl_->alone() && !made) {
    world.impl_->checked("all-gather", Operation::all_gather, 0, [&] { made.emplace(second(world, "backwards")); });
  }
  return made ? *made : world;
}

World WorldAccess::connect_again(World& world, std::string_view purpose, c10::Device device, Backend backend) {
  World::Impl& impl = *world.impl_;
  const auto store = c10::make_intrusive<c10d::PrefixStore>(fmt::format("channel/{}/{}", purpose, ++impl.channels),
                                                            impl.store->clone());
  std::optional<World> made;
  with_peers(world, "connecting a channel",
             [&] { made.emplace(make(store, impl.place, device, backend, impl.timeout)); });
  // LibTorch's flight recorder registers a group at its first collective without taking its lock, so two threads must
  // not do it at the same time.
  made->barrier("channel");
  made->impl_->start_directory = impl.start_directory;
  return std::move(*made);
}

}  // namespace lockstep
