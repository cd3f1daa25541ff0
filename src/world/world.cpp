#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/world/world.h>

#include "base/log_label.h"
#include "base/terminal.h"
#include "world/rank_device.h"
#include "world/text_store.h"
#include "world/world_impl.h"

namespace lockstep {

World::World(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;
World::~World() = default;

int World::rank() const noexcept { return impl_->place.rank; }
int World::size() const noexcept { return impl_->place.size; }
int World::local_rank() const noexcept { return impl_->place.local_rank; }
int World::local_size() const noexcept { return impl_->place.local_size; }
int World::node() const noexcept { return impl_->place.node; }
int World::nodes() const noexcept { return impl_->place.nodes; }
bool World::is_main() const noexcept { return rank() == 0; }
c10::Device World::device() const noexcept { return impl_->device; }

std::unique_ptr<Store> World::store(std::string_view prefix) const {
  if (impl_->alone()) {
    throw CommError("a world of one rank has no store", "test world.size() first", ExitCode::usage);
  }
  return make_text_store(c10::make_intrusive<c10d::PrefixStore>(fmt::format("user/{}", prefix), impl_->store->clone()),
                         impl_->store);
}

const c10::intrusive_ptr<c10d::ProcessGroup>& WorldAccess::group(const World& world) {
  return world.impl_->planes->group();
}

Backend WorldAccess::backend(const World& world) { return world.impl_->backend; }

bool WorldAccess::shares_memory(const World& world) { return backend(world) == Backend::shm; }

bool WorldAccess::leave_shared_memory(World& world, std::string_view reason) {
  World::Impl& impl = *world.impl_;
  if (!shares_memory(world) || !impl.may_leave_shared_memory) {
    return false;
  }
  impl.backend = Backend::gloo;
  log_info(fmt::format("gradients go through Gloo, not through shared memory: {}", reason));
  return true;
}

std::chrono::milliseconds WorldAccess::timeout(const World& world) { return world.impl_->timeout; }

void WorldAccess::wait_for(const World& world, const c10::Event& event) {
  wait_for_event(event, [&impl = *world.impl_] { impl.check_device(); });
}

void WorldAccess::settle_device(const World& world) {
  const c10::Device device = world.device();
  if (!device.is_cpu()) {
    c10::Event done(device.type());
    done.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    wait_for(world, done);
  }
}

at::Tensor WorldAccess::on_host(const World& world, const at::Tensor& tensor) {
  settle_device(world);
  return tensor.cpu();
}

ProgressRecord& WorldAccess::progress(const World& world) { return *world.impl_->progress; }

DeviceClock& WorldAccess::clock(const World& world) { return *shared_clock(world); }

const std::shared_ptr<ProgressRecord>& WorldAccess::shared_progress(const World& world) {
  return world.impl_->progress;
}

const std::shared_ptr<DeviceClock>& WorldAccess::shared_clock(const World& world) {
  std::shared_ptr<DeviceClock>& clock = world.impl_->clock;
  if (clock == nullptr) {
    clock = std::make_shared<DeviceClock>(world.device());
  }
  return clock;
}

const std::filesystem::path& WorldAccess::start_directory(const World& world) { return world.impl_->start_directory; }

std::weak_ptr<RunHold>& WorldAccess::run_hold(World& world) { return world.impl_->run_hold; }

std::optional<TrainControl>& WorldAccess::control_of_run(World& world) { return world.impl_->control_of_run; }

void WorldAccess::tell_what_is_left(const World& world, std::string_view text) {
  const auto& listener = world.impl_->on_what_is_left;
  const LogLevel level = world.is_main() ? LogLevel::info : LogLevel::warning;  // only the main rank gives infos
  if (!is_logged(LogLevel::info) || (!listener && give_to_log_handler(level, text))) {
    return;
  }
  const auto line = world.size() > 1 ? fmt::format("[rank{}]: {}", world.rank(), text) : std::string(text);
  if (listener) {
    listener(line);
  } else {
    write_line(line);
  }
}

std::function<void(const std::string&)>& WorldAccess::on_what_is_left(World& world) {
  return world.impl_->on_what_is_left;
}

const std::vector<RankPlace>& WorldAccess::places(const World& world) { return world.impl_->places; }

}  // namespace lockstep
