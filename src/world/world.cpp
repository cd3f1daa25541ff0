#include <algorithm>
#include <cstring>
#include <exception>
#include <future>
#include <optional>
#include <thread>
#include <typeinfo>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/base/variables.h>
#include <lockstep/plan/plan.h>
#include <lockstep/world/world.h>

#include "base/assertion.h"
#include "base/duration.h"
#include "base/text.h"
#include "environment/cuda_driver.h"
#include "environment/nodes.h"
#include "environment/process_name.h"
#include "environment/visible_devices.h"
#include "failure/linger.h"
#include "tensor/vector_math.h"
#include "world/agreement.h"
#include "world/process_group.h"
#include "world/remote_error.h"
#include "world/rendezvous.h"
#include "world/world_access.h"

namespace lockstep {

std::string plain_text(const std::exception& error) {
  std::string text(without_frames(error.what()));
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// NCCL's own text says that a call of CUDA failed.
bool is_gpu_failure(const std::exception& error) noexcept {
  return dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr ||
         dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         (dynamic_cast<const c10::DistBackendError*>(&error) != nullptr &&
          std::string_view(error.what()).find("unhandled cuda error") != std::string_view::npos);
}

bool is_peer_failure(const std::exception& error) noexcept {
  // Gloo's exception types are not in LibTorch's headers, so this compares their names.
  return !is_gpu_failure(error) && (dynamic_cast<const c10::DistError*>(&error) != nullptr ||
                                    std::string_view(typeid(error).name()).find("gloo") != std::string_view::npos);
}

namespace {

constexpr const char* kPeerHint = "another rank failed or is late; see its own message";

}  // namespace

// A wait of the driver would last as long as NCCL waits for a lost peer. The pauses are far shorter than a step, and
// the device has work for a whole step while the host waits.
void wait_for_event(const c10::Event& event, const std::function<void()>& check) {
  constexpr std::chrono::microseconds kLongestPause{500};
  for (std::chrono::microseconds pause{10}; !event.query(); pause = std::min(2 * pause, kLongestPause)) {
    check();
    std::this_thread::sleep_for(pause);
  }
  check();
}

void with_peers(const World& world, std::string_view what, const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    if (!is_peer_failure(error)) {
      throw;
    }
    throw CommError(fmt::format("{} failed on rank {} of {}: {}", what, world.rank(), world.size(), plain_text(error)),
                    kPeerHint);
  }
}

namespace {

using std::chrono::milliseconds;

std::int64_t bytes_of(const at::Tensor& tensor) { return static_cast<std::int64_t>(tensor.nbytes()); }

at::Tensor bytes_tensor(std::string_view bytes) {
  auto tensor = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  if (!bytes.empty()) {
    std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  }
  return tensor;
}

std::string to_bytes(const at::Tensor& tensor, std::int64_t size) {
  return {static_cast<const char*>(tensor.data_ptr()), static_cast<std::size_t>(size)};
}

class TcpStore final : public Store {
 public:
  /// `world`: the world's connection, kept open here. On rank 0 it may serve the store, which would otherwise end if
  /// the World could not be completed.
  TcpStore(c10::intrusive_ptr<c10d::Store> store, c10::intrusive_ptr<c10d::Store> world)
      : world_(std::move(world)), store_(std::move(store)) {}
  void set(std::string_view key, std::string_view value) override { store_set(*store_, std::string(key), value); }
  std::string get(std::string_view key, milliseconds timeout) override {
    if (!store_wait(*store_, std::string(key), timeout)) {
      throw CommError(fmt::format("no value for '{}' after {} ms", key, timeout.count()), {}, ExitCode::timeout);
    }
    return store_get(*store_, std::string(key));
  }
  bool check(std::string_view key) override { return store_check(*store_, std::string(key)); }
  std::int64_t add(std::string_view key, std::int64_t delta) override {
    return store_add(*store_, std::string(key), delta);
  }

 private:
  c10::intrusive_ptr<c10d::Store> world_;
  c10::intrusive_ptr<c10d::Store> store_;
};

/// Fails here if the GPU cannot be used, not at the first tensor. `uuids`: those of the GPUs of this node's ranks, as
/// the plan knows them. Returns the device under which CUDA knows the GPU `local` of them.
c10::Device start_gpu(c10::Device device, const std::vector<std::string>& uuids, std::size_t local) {
  const ScopedVariable order(kDeviceOrder, kPciOrder);  // the order in which the plan numbers GPUs
  load_cuda();
  try {
    at::globalContext().lazyInitDevice(c10::kCUDA);
    // The numbers differ if the user has chosen another order, or if a GPU answers only one of NVML and CUDA.
    if (const auto indices = cuda_indices(uuids, cuda_gpus()); !indices.empty()) {
      device.set_index(static_cast<c10::DeviceIndex>(indices[local]));
    }
    const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
    cuda.setDevice(device);
    at::ones({1}, at::device(device));  // a kernel: LibTorch may have none for this kind of GPU
    cuda.synchronizeDevice(device.index());
    return device;
  } catch (const c10::Error& error) {
    throw LaunchError(fmt::format("cannot use {}: {}", device.str(), plain_text(error)),
                      "check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --compute_setup cpu");
  }
}

/// "cuda:1 NVIDIA H100 GPU-1234"
std::string device_text(const LocalDevice& device) {
  return device.id.gpu ? fmt::format("{} {} {}", to_string(device.id), device.name, device.uuid) : std::string("CPU");
}

std::vector<std::string> uuids_of(const std::vector<LocalDevice>& devices) {
  std::vector<std::string> uuids;
  std::transform(devices.begin(), devices.end(), std::back_inserter(uuids),
                 [](const LocalDevice& device) { return device.uuid; });
  return uuids;
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

/// Throws: Error if the backends cannot reduce the tensor; before a rank waits for others.
void check_reducible(const at::Tensor& tensor, Reduce op) {
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

struct World::Impl {
  Impl() { settle_vector_math(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  // NCCL's group warns if it is destroyed without a shutdown, which waits for the other ranks. They may not come if
  // this rank failed.
  ~Impl() {
    try {
      if (group && (std::uncaught_exceptions() > exceptions_before || device_error() != c10d::ErrorType::SUCCESS)) {
        group->abort();
      } else if (group) {
        group->shutdown();
      }
    } catch (const std::exception& error) {
      log_warning(fmt::format("the process group did not shut down: {}", plain_text(error)));
    }
  }

  const int exceptions_before = std::uncaught_exceptions();
  RankCoordinates place{};
  c10::Device device{c10::kCPU};
  milliseconds timeout{};
  c10::intrusive_ptr<c10d::Store> store{};
  c10::intrusive_ptr<c10d::ProcessGroup> group{};
  c10::intrusive_ptr<c10d::Backend> gloo{};
  c10::intrusive_ptr<c10d::Backend> nccl{};  // null without NCCL
  Backend backend = Backend::gloo;           // in use
  bool may_leave_shared_memory = false;      // nobody asked for it
  std::int64_t operations = 0;               // control-plane collectives begun by this rank
  ProgressRecord own_progress{};
  std::optional<ProgressBoard> board{};  // that of the launcher, if there is one
  ProgressRecord* progress = &own_progress;
  std::int64_t channels = 0;
  std::weak_ptr<RunHold> run_hold{};
  std::vector<RankPlace> places{};  // of all ranks
  std::optional<DeterministicCuda> deterministic_cuda{};

  bool alone() const noexcept { return place.size == 1; }
  static std::string at_key(int rank) { return fmt::format("at/{}", rank); }

  // Note [Who is missing]: before a control-plane collective, each rank writes its number and name to the store. If the
  // collective fails, the ranks with an older note than ours are missing.
  void announce(std::string_view what) {
    store_set(*store, at_key(place.rank), fmt::format("{} {}", ++operations, what));
  }

  static std::string missing_ranks(c10d::Store& store, int size, std::int64_t operations) {
    std::vector<std::string> missing;
    for (int rank = 0; rank < size; ++rank) {
      std::string note;
      if (store_check(store, at_key(rank))) {
        note = store_get(store, at_key(rank));
      }
      const auto space = std::min(note.find(' '), note.size());
      const auto number = parse_int(std::string_view(note).substr(0, space)).value_or(0);
      if (number < operations) {
        missing.push_back(note.empty() ? std::to_string(rank)
                                       : fmt::format("{} (last seen at '{}')", rank, note.substr(space + 1)));
      }
    }
    return join(missing, ", ");
  }

  // The store's host may be unreachable. Then the thread that waits for it is abandoned: it cannot be interrupted, and
  // this rank is about to end.
  std::string missing_ranks_soon() const {
    std::packaged_task<std::string()> question(
        [shared = store, size = place.size, done = operations] { return missing_ranks(*shared, size, done); });
    auto answer = question.get_future();
    std::thread(std::move(question)).detach();
    return answer.wait_for(deadlines::kMissingRanks) == std::future_status::ready
               ? answer.get()
               : "unknown, the rendezvous store does not answer";
  }

  c10d::ErrorType device_error() const { return nccl ? nccl->getError() : c10d::ErrorType::SUCCESS; }

  // See Note [NCCL policy].
  void check_device() const {
    if (const auto error = device_error(); error != c10d::ErrorType::SUCCESS) {
      const bool is_late = error == c10d::ErrorType::TIMEOUT;
      throw CommError(fmt::format("a collective of NCCL {} on rank {} of {}",
                                  is_late ? fmt::format("took longer than {} s", timeout.count() / 1000) : "failed",
                                  place.rank, place.size),
                      kPeerHint);
    }
  }

  // After a failure the operation stays in the record, because it shows where this rank is.
  template <class Work>
  void checked(std::string_view what, Operation operation, std::int64_t bytes, Work&& work) {
    progress->begin(operation, bytes);
    try {
      check_device();
      work();
      progress->end();
    } catch (const std::exception& error) {
      if (is_gpu_failure(error)) {
        throw;
      }
      std::string missing;
      try {
        missing = missing_ranks_soon();
      } catch (const std::exception&) {
        missing = "unknown, the rendezvous store is gone as well";
      }
      throw CommError(fmt::format("{} failed on rank {} of {}: {}{}", what, place.rank, place.size, plain_text(error),
                                  missing.empty() ? "" : "; missing ranks: " + missing),
                      kPeerHint);
    }
  }

  template <class Work>
  void control(std::string_view what, Operation operation, std::int64_t bytes, Work&& work) {
    checked(what, operation, bytes, [&] {
      announce(what);
      work();
    });
  }

  using Type = c10d::ProcessGroup::BackendType;

  void connect_control_plane() {
    if (alone()) {
      return;
    }
    group = c10::make_intrusive<c10d::ProcessGroup>(store, place.rank, place.size);
    gloo = make_gloo_backend(c10::make_intrusive<c10d::PrefixStore>("gloo", store), place.rank, place.size,
                             place.address, timeout);
    group->setBackend(c10::kCPU, Type::GLOO, gloo);
    group->setDefaultBackend(Type::GLOO);
    group->setGroupName("lockstep");
  }

  /// Note [Shared memory of auto]: with --backend auto, a rank on the CPU plans for shared memory if its launcher shows
  /// one machine. The ranks agree on Gloo if they find several machines when they meet, if one cannot have the memory,
  /// which they know only when they build a reducer, or if the checkpoint was written with Gloo. So nothing depends on
  /// what a plan cannot know. Whoever asks for shm gets it or an error.
  /// `asked`: automatic: shm, which the ranks may leave.
  void connect_data_plane(c10::Device on, Backend asked) {
    device = on;
    may_leave_shared_memory = asked == Backend::automatic;
    backend = may_leave_shared_memory ? Backend::shm : asked;
    if (alone() || !device.is_cuda()) {
      return;
    }
    if (backend != Backend::nccl) {
      group->setBackend(c10::kCUDA, Type::GLOO, gloo);
      return;
    }
    group->setBoundDeviceId(device);
    nccl = make_nccl_backend(c10::make_intrusive<c10d::PrefixStore>("nccl", store->clone()), place.rank, place.size,
                             device, timeout, /*on_one_machine=*/place.address == kLoopback);
    group->setBackend(c10::kCUDA, Type::NCCL, nccl);
    group->setDefaultBackend(Type::NCCL);
  }

  std::vector<std::string> gather(std::string_view what, std::string_view bytes) {
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
      group->allgather(sizes, input)->wait();
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
      group->allgather(outputs, sent)->wait();
      for (std::size_t rank = 0; rank < count; ++rank) {
        all.push_back(to_bytes(outputs[0][rank], sizes[0][rank].item<std::int64_t>()));
      }
    });
    return all;
  }

  /// Not every launcher provides the node of a rank or the number of ranks on it. Returns why the ranks do not share
  /// memory; "": `wants_memory` on all of them, and they are on one machine.
  std::string learn_nodes(const Identity& identity, bool wants_memory) {
    std::vector<NodeClaim> claims;
    std::string refusal;
    for (const std::string& theirs : gather("gather of nodes", fmt::format("{} {} {} {}", identity.local_rank,
                                                                           identity.node_is_guess ? -1 : identity.node,
                                                                           wants_memory ? 1 : 0, host_name()))) {
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

  std::int64_t control_all_reduce(std::string_view what, Operation operation, std::int64_t value, c10d::ReduceOp op,
                                  milliseconds longest = c10d::kUnsetTimeout) {
    auto tensor = at::full({1}, value, at::kLong);
    control(what, operation, 0, [&] {
      std::vector<at::Tensor> tensors{tensor};
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      options.timeout = longest;
      group->allreduce(tensors, options)->wait();
    });
    return tensor.item<std::int64_t>();
  }

  // A rank that failed waits for nobody else: the others may still work, or have ended because of it.
  void let_others_read(const std::string& prefix) const noexcept {
    std::vector<std::string> keys;
    for (int rank = 0; rank < place.size; ++rank) {
      keys.push_back(prefix + std::to_string(rank));
    }
    if (place.rank == 0) {
      linger(deadlines::kLinger, [&] { return store->check(keys); });
    }
  }

  // Note [Taking turns]: ranks wait for each other's turn in the store, so that work may take any time without tripping
  // the timeout of a collective. A store that dies with its rank ends the wait. `after` says after whom a rank works;
  // in the end, all wait for rank 0. Only rank 0 asks for the outcome of every rank, and writes for the others the
  // first failure in the order of the ranks: n ranks would otherwise ask n^2 questions.
  template <class After>
  void take_turns(std::string_view what, const std::function<void()>& work, After&& after) {
    if (alone()) {
      work();
      return;
    }
    progress->begin(Operation::turn, 0);
    announce(what);
    const std::string prefix = fmt::format("turn/{}/", operations);
    const auto read = [&](const std::string& name) {
      const std::string key = prefix + name;
      while (!store_wait(*store, key, std::chrono::hours(24))) {
      }
      return store_get(*store, key);
    };
    // The first failure is what every rank hears of, after the number of its rank; nobody works after it.
    const std::string kOk = "ok";
    const std::string kAll = "all";
    std::string outcome = kOk;
    if (const int before = after(place.rank); before >= 0) {
      outcome = read(std::to_string(before));
    }
    const bool may_work = outcome == kOk;
    std::exception_ptr mine;
    if (may_work) {
      progress->end();  // its own turn: what it does now is no collective
      try {
        work();
      } catch (const std::exception& error) {
        mine = std::current_exception();
        outcome = fmt::format("{} {}", place.rank, encode_error(error));
      }
      progress->begin(Operation::turn, 0);
    }
    store_set(*store, prefix + std::to_string(place.rank), outcome);
    if (mine) {
      let_others_read(prefix);
      progress->end();
      std::rethrow_exception(mine);
    }
    if (place.rank == 0) {
      for (int rank = 1; rank < place.size; ++rank) {
        if (const std::string theirs = read(std::to_string(rank)); outcome == kOk) {
          outcome = theirs;
        }
      }
      store_set(*store, prefix + kAll, outcome);
    } else if (may_work) {
      outcome = read(kAll);
    }
    progress->end();
    if (outcome != kOk) {
      const auto space = outcome.find(' ');
      throw_remote_error(std::string_view(outcome).substr(space + 1), what,
                         static_cast<int>(parse_int(std::string_view(outcome).substr(0, space)).value_or(0)));
    }
  }
};

World WorldAccess::make(const c10::intrusive_ptr<c10d::Store>& store, const RankCoordinates& place, c10::Device device,
                        Backend backend, milliseconds timeout) {
  auto impl = std::make_unique<World::Impl>();
  impl->place = place;
  impl->timeout = timeout;
  impl->store = store;
  impl->connect_control_plane();
  impl->connect_data_plane(device, backend);
  return World(std::move(impl));
}

const c10::intrusive_ptr<c10d::ProcessGroup>& WorldAccess::group(const World& world) { return world.impl_->group; }

Backend WorldAccess::backend(const World& world) { return world.impl_->backend; }

bool WorldAccess::shares_memory(const World& world) { return backend(world) == Backend::shm; }

bool WorldAccess::leave_shared_memory(World& world, std::string_view reason) {
  World::Impl& impl = *world.impl_;
  if (!shares_memory(world) || !impl.may_leave_shared_memory) {
    return false;
  }
  impl.backend = Backend::gloo;
  if (world.is_main()) {
    log_info(fmt::format("gradients go through Gloo, not through shared memory: {}", reason));
  }
  return true;
}

milliseconds WorldAccess::timeout(const World& world) { return world.impl_->timeout; }

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

std::weak_ptr<RunHold>& WorldAccess::run_hold(World& world) { return world.impl_->run_hold; }

const std::vector<RankPlace>& WorldAccess::places(const World& world) { return world.impl_->places; }

World::World(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;
World::~World() = default;

World World::connect(const Plan& plan, const Identity& identity) { return WorldAccess::connect(plan, identity, {}); }

World WorldAccess::connect(const Plan& plan, const Identity& identity, const std::function<void(const World&)>& met) {
  const auto local = static_cast<std::size_t>(identity.local_rank);
  LOCKSTEP_ASSERT(local < plan.local_devices.size(), "the plan has a device for every local rank");
  const LocalDevice& chosen = plan.local_devices[local];
  set_log_rank(identity.rank, identity.world_size);
  World world(std::make_unique<World::Impl>());
  World::Impl& impl = *world.impl_;
  if (identity.progress_fd >= 0) {
    impl.board.emplace(identity.progress_fd, identity.local_rank);
    impl.progress = &(*impl.board)[identity.local_rank];
    impl.progress->set_stall_limits(to_milliseconds(plan.config.dist.stall_warn_s),
                                    to_milliseconds(plan.config.dist.stall_timeout_s));
  }
  impl.place = {.rank = identity.rank,
                .size = identity.world_size,
                .local_rank = identity.local_rank,
                .local_size = identity.local_world_size,
                .node = identity.node,
                .nodes = identity.nodes};
  impl.device =
      chosen.id.gpu ? c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(chosen.id.index)) : c10::Device(c10::kCPU);
  const PhaseScope phase(*impl.progress, impl.alone() ? Phase::start : Phase::rendezvous);
  Meeting meeting;
  if (!impl.alone()) {
    meeting = rendezvous(identity, to_milliseconds(plan.config.dist.init_timeout_s));
    impl.store = std::move(meeting.store);
    impl.progress->set_phase(Phase::rendezvous);  // the ranks have connected; the following work has a separate limit
  }
  if (met) {
    met(world);
  }
  if (chosen.id.gpu) {
    if (plan.config.deterministic != Determinism::off) {
      impl.deterministic_cuda.emplace();
    }
    impl.device = start_gpu(impl.device, uuids_of(plan.local_devices), local);
  }
  const RankPlace place{.host = plan.host, .device = device_text(chosen), .pid = getpid()};
  if (impl.alone()) {
    impl.places = {place};
    return world;
  }
  impl.timeout = to_milliseconds(plan.config.dist.timeout_s);
  const Variables environment = read_environment();
  if (impl.place.local_size < impl.place.size || identity.local_size_is_guess) {
    impl.place.address = environment.has("GLOO_SOCKET_IFNAME") ? std::string() : meeting.address;
  }
  try {
    impl.connect_control_plane();
    const bool shares_by_itself =
        plan.config.backend == Backend::shm && plan.asked && plan.asked->backend == Backend::automatic;
    const std::string refusal = impl.learn_nodes(identity, plan.config.backend == Backend::shm);
    TrainConfig compared = plan.config;
    if (shares_by_itself) {
      compared.backend = Backend::gloo;  // what ranks may plan whose launcher shows them several machines
    }
    // NCCL identifies the host by this variable.
    impl.places = agree_at_start(
        compared, chosen.uuid.empty() ? chosen.uuid : chosen.uuid + environment.get("NCCL_HOSTID").value_or(""), world,
        place);
    impl.connect_data_plane(impl.device, shares_by_itself ? Backend::automatic : plan.config.backend);
    if (shares_by_itself && !refusal.empty()) {
      WorldAccess::leave_shared_memory(world, refusal);
    }
    return world;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw CommError(fmt::format("rank {} cannot connect to the other ranks: {}", identity.rank, plain_text(error)),
                    "check that the nodes reach each other, and GLOO_SOCKET_IFNAME / NCCL_SOCKET_IFNAME");
  }
}

World World::single(c10::Device device) {
  if (device.is_cuda()) {
    start_gpu(device, /*uuids=*/{}, /*local=*/0);
  }
  return WorldAccess::make({}, {}, device, Backend::gloo, {});
}

int World::rank() const noexcept { return impl_->place.rank; }
int World::size() const noexcept { return impl_->place.size; }
int World::local_rank() const noexcept { return impl_->place.local_rank; }
int World::local_size() const noexcept { return impl_->place.local_size; }
int World::node() const noexcept { return impl_->place.node; }
int World::nodes() const noexcept { return impl_->place.nodes; }
bool World::is_main() const noexcept { return rank() == 0; }
c10::Device World::device() const noexcept { return impl_->device; }

void World::all_reduce(const at::Tensor& tensor, Reduce op) {
  check_reducible(tensor, op);
  if (impl_->alone()) {
    return;
  }
  const at::NoGradGuard no_grad;
  impl_->checked("all-reduce", Operation::all_reduce, bytes_of(tensor), [&] {
    const Sendable sent(tensor);
    std::vector<at::Tensor> tensors{sent.dense.is_complex() ? at::view_as_real(sent.dense) : sent.dense};
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
    impl_->group->allreduce(tensors, options)->wait();
    if (op == Reduce::mean) {
      tensors[0].div_(size());
    }
    sent.store_in(tensor);
  });
}

void World::broadcast(const at::Tensor& tensor, int root) {
  if (impl_->alone() || tensor.numel() == 0) {
    return;
  }
  const at::NoGradGuard no_grad;
  impl_->checked("broadcast", Operation::broadcast, bytes_of(tensor), [&] {
    const Sendable sent(tensor);
    std::vector<at::Tensor> tensors{sent.bytes()};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    impl_->group->broadcast(tensors, options)->wait();
    sent.store_in(tensor);
  });
}

at::Tensor World::all_gather(const at::Tensor& tensor) {
  if (impl_->alone()) {
    return tensor;
  }
  std::vector<std::int64_t> rows;
  for (const auto& text : impl_->gather("all-gather (sizes)", std::to_string(tensor.size(0)))) {
    rows.push_back(parse_int(text).value_or(0));
  }
  const at::NoGradGuard no_grad;
  const std::int64_t longest = *std::max_element(rows.begin(), rows.end());
  auto shape = tensor.sizes().vec();
  shape[0] = longest;
  std::vector<at::Tensor> parts;
  impl_->checked("all-gather", Operation::all_gather, bytes_of(tensor), [&] {
    auto padded = at::zeros(shape, tensor.options());
    padded.narrow(0, 0, tensor.size(0)).copy_(tensor);
    std::vector<at::Tensor> input{Sendable(padded).bytes()};
    std::vector<std::vector<at::Tensor>> outputs(1);
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      outputs[0].push_back(at::empty_like(input[0]));
    }
    if (input[0].numel() > 0) {
      impl_->group->allgather(outputs, input)->wait();
    }
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      parts.push_back(outputs[0][rank].view(tensor.scalar_type()).view(shape).narrow(0, 0, rows[rank]));
    }
  });
  return at::cat(parts);
}

void World::barrier(std::string_view what) {
  if (!impl_->alone()) {
    impl_->control_all_reduce(fmt::format("barrier '{}'", what), Operation::barrier, 0, c10d::ReduceOp::SUM);
  }
}

bool World::any(bool value) {
  return impl_->alone() ? value
                        : impl_->control_all_reduce("any", Operation::any, value ? 1 : 0, c10d::ReduceOp::MAX) != 0;
}

bool WorldAccess::meet(World& world, bool value) {
  constexpr std::chrono::hours kNoLimit{24 * 365};
  World::Impl& impl = *world.impl_;
  return impl.alone() ? value
                      : impl.control_all_reduce("waiting for callbacks", Operation::any, value ? 1 : 0,
                                                c10d::ReduceOp::MAX, kNoLimit) != 0;
}

bool World::all(bool value) {
  return impl_->alone() ? value
                        : impl_->control_all_reduce("all", Operation::all, value ? 1 : 0, c10d::ReduceOp::MIN) != 0;
}

std::vector<std::string> World::gather(std::string_view bytes) { return impl_->gather("gather", bytes); }

std::string World::broadcast_bytes(std::string_view bytes, int root) {
  if (impl_->alone()) {
    return std::string(bytes);
  }
  std::string result;
  impl_->control("broadcast of bytes", Operation::bytes, static_cast<std::int64_t>(bytes.size()), [&] {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<at::Tensor> size{at::full({1}, static_cast<std::int64_t>(bytes.size()), at::kLong)};
    impl_->group->broadcast(size, options)->wait();
    const auto length = size[0].item<std::int64_t>();
    std::vector<at::Tensor> data{rank() == root ? bytes_tensor(bytes) : at::empty({length}, at::kByte)};
    if (length > 0) {
      impl_->group->broadcast(data, options)->wait();
    }
    result = to_bytes(data[0], length);
  });
  return result;
}

void World::main_first(std::string_view what, const std::function<void()>& work) {
  impl_->take_turns(what, work, [](int rank) { return rank == 0 ? -1 : 0; });
}

void World::one_by_one(std::string_view what, const std::function<void()>& work) {
  impl_->take_turns(what, work, [](int rank) { return rank - 1; });
}

World World::channel(std::string_view purpose) {
  return impl_->alone() ? single(c10::Device(c10::kCPU))
                        : WorldAccess::connect_again(*this, purpose, c10::Device(c10::kCPU), Backend::gloo);
}

World WorldAccess::second(World& world, std::string_view purpose) {
  const World::Impl& impl = *world.impl_;
  World made = connect_again(world, purpose, impl.device, impl.nccl ? Backend::nccl : Backend::gloo);
  made.impl_->progress = impl.progress;
  return made;
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
  return std::move(*made);
}

std::unique_ptr<Store> World::store(std::string_view prefix) const {
  if (impl_->alone()) {
    throw CommError("a world of one rank has no store", "test world.size() first", ExitCode::usage);
  }
  return std::make_unique<TcpStore>(
      c10::make_intrusive<c10d::PrefixStore>(fmt::format("user/{}", prefix), impl_->store->clone()), impl_->store);
}

}  // namespace lockstep
