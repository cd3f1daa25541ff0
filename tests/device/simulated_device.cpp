#include "device/simulated_device.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace lockstep::simulated {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 2;
constexpr int kPoison = 0xC5;
constexpr c10::DeviceIndex kOfGraphs = -2;  // instead of a device: memory that belongs to graphs

using StreamKey = std::pair<c10::DeviceIndex, c10::StreamId>;

/// A point in the work of a stream.
struct Moment {
  StreamKey stream{};
  bool is_over = false;
  bool is_recorded = false;  ///< as a part of a graph: it can be neither asked for nor timed
  std::chrono::nanoseconds time{};
};
using MomentPtr = std::shared_ptr<Moment>;

struct Work {
  std::function<void()> kernel{};
  MomentPtr wait_for{};  ///< null: a kernel
};

struct Block {
  std::size_t bytes = 0;
  StreamKey stream{};             ///< of device memory
  std::vector<MomentPtr> uses{};  ///< freed memory is kept until they are over
  std::set<StreamKey> recorded{};
  bool is_free = false;
};

using Kernels = std::vector<std::function<void()>>;

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kDevices> current_streams{};

class Simulator {
 public:
  void begin(std::uint64_t seed) {
    const std::lock_guard lock(mutex_);
    if (held_) {
      std::exchange(held_, nullptr)->is_over = true;
    }
    finish();
    seed_ = seed;
    random_.seed(seed);
    host_waits_ = 0;
  }

  StreamKey current(c10::DeviceIndex device) const {
    return {device, current_streams.at(static_cast<std::size_t>(device))};
  }

  MomentPtr enqueue(const StreamKey& stream, std::function<void()> kernel) {
    const std::lock_guard lock(mutex_);
    auto moment = std::make_shared<Moment>(Moment{.stream = stream});
    if (is_recorded(stream)) {
      kernel();
      moment->is_over = true;
      moment->is_recorded = !is_apart_;
      if (!is_apart_) {
        recording_->kernels.push_back(std::move(kernel));
      }
      return moment;
    }
    queues_[stream].push_back({.kernel = [this, kernel = std::move(kernel), moment] {
      kernel();
      moment->is_over = true;
      moment->time = time_;
    }});
    run_some();
    return moment;
  }

  void block(const StreamKey& stream, const MomentPtr& moment) {
    const std::lock_guard lock(mutex_);
    queues_[stream].push_back({.wait_for = moment});
    run_some();
  }

  void reach(const MomentPtr& moment) {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(!is_recorded(moment->stream) || is_apart_, "the host waits for work that is recorded");
    ++host_waits_;
    while (advance(moment)) {
    }
  }

  bool is_over(const MomentPtr& moment) {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(!moment->is_recorded, "the host asks for an event of a graph");
    run_some();
    advance(moment);  // asking again and again comes to an end
    return moment->is_over;
  }

  void finish() {
    const std::lock_guard lock(mutex_);
    while (run_anything()) {
    }
  }

  void hold(const StreamKey& stream) {
    const std::lock_guard lock(mutex_);
    held_ = std::make_shared<Moment>(Moment{.stream = {-1, -1}});
    queues_[stream].push_back({.wait_for = held_});
  }

  c10::StreamId new_stream() {
    const std::lock_guard lock(mutex_);
    return ++streams_;
  }

  void* allocate(std::size_t bytes, const StreamKey& stream) {
    const std::lock_guard lock(mutex_);
    const StreamKey owner = is_recorded(stream) ? recording_->memory : stream;
    return take(
        device_memory_, bytes, [&](const Block& block) { return block.stream == owner; }, owner);
  }

  /// What `stream` gets from now on is recorded. It runs, so that results have a shape, and is undone at the end.
  /// `memory` owns what is allocated.
  void begin_recording(const StreamKey& stream, const StreamKey& memory) {
    const std::lock_guard lock(mutex_);
    finish();
    recording_ = std::make_unique<Recording>(Recording{.stream = stream, .memory = memory});
    for (const auto& [data, block] : device_memory_) {
      const char* bytes = static_cast<const char*>(data);
      recording_->before[data].assign(bytes, bytes + block.bytes);
    }
  }

  Kernels end_recording() {
    const std::lock_guard lock(mutex_);
    for (const auto& [data, block] : device_memory_) {
      void* const memory = const_cast<void*>(data);
      if (const auto found = recording_->before.find(data); found != recording_->before.end()) {
        std::memcpy(memory, found->second.data(), block.bytes);
      } else {
        std::memset(memory, kPoison, block.bytes);
      }
    }
    return std::move(std::exchange(recording_, nullptr)->kernels);
  }

  bool is_recording() {
    const std::lock_guard lock(mutex_);
    return recording_ != nullptr;
  }

  /// Runs `work` while a recording is under way, but not as a part of it, and adds the kernel that it returns.
  void record_as(const std::function<std::function<void()>()>& work) {
    const std::lock_guard lock(mutex_);
    is_apart_ = true;
    try {
      recording_->kernels.push_back(work());
    } catch (...) {
      is_apart_ = false;
      throw;
    }
    is_apart_ = false;
  }

  void free(void* data) {
    const std::lock_guard lock(mutex_);
    Block& block = device_memory_.at(data);
    for (const StreamKey& stream : std::exchange(block.recorded, {})) {
      block.uses.push_back(enqueue(stream, [] {}));
    }
    block.is_free = true;
    if (block.uses.empty() && block.stream.first != kOfGraphs) {
      poison_later(data, block);
    }
  }

  void record(void* data, const StreamKey& stream) {
    const std::lock_guard lock(mutex_);
    if (auto found = device_memory_.find(data); found != device_memory_.end() && found->second.stream != stream) {
      found->second.recorded.insert(stream);
    }
  }

  void* allocate_pinned(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    return take(pinned_memory_, std::bit_ceil(bytes), [](const Block&) { return true; }, {});
  }

  void free_pinned(void* data) {
    const std::lock_guard lock(mutex_);
    Block& block = pinned_memory_.at(data);
    block.is_free = true;
    std::erase_if(block.uses, [](const MomentPtr& use) { return use->is_over; });
    if (block.uses.empty()) {
      std::memset(data, kPoison, block.bytes);
    }
  }

  bool is_pinned(const void* data) {
    const std::lock_guard lock(mutex_);
    return pinned_block(data) != nullptr;
  }

  void use_pinned(const void* data, const MomentPtr& moment) {
    const std::lock_guard lock(mutex_);
    if (Block* block = pinned_block(data)) {
      block->uses.push_back(moment);
    }
  }

  std::int64_t pinned_bytes() {
    const std::lock_guard lock(mutex_);
    std::int64_t sum = 0;
    for (const auto& [data, block] : pinned_memory_) {
      sum += block.is_free ? 0 : static_cast<std::int64_t>(block.bytes);
    }
    return sum;
  }

  /// That `stream` owns, also if it is free.
  std::int64_t device_bytes(const StreamKey& stream) {
    const std::lock_guard lock(mutex_);
    std::int64_t sum = 0;
    for (const auto& [data, block] : device_memory_) {
      sum += block.stream == stream ? static_cast<std::int64_t>(block.bytes) : 0;
    }
    return sum;
  }

  std::int64_t host_waits() {
    const std::lock_guard lock(mutex_);
    return host_waits_;
  }

  void spend(std::chrono::nanoseconds time) {
    const std::lock_guard lock(mutex_);
    time_ += time;
  }

 private:
  using Memory = std::map<const void*, Block>;
  struct Recording {
    StreamKey stream{};
    StreamKey memory{};
    std::map<const void*, std::vector<char>> before{};
    Kernels kernels{};
  };

  bool is_recorded(const StreamKey& stream) const { return recording_ != nullptr && recording_->stream == stream; }

  template <class Fits>
  void* take(Memory& memory, std::size_t bytes, const Fits& fits, const StreamKey& stream) {
    for (auto& [data, block] : memory) {
      if (block.is_free && block.bytes == bytes && fits(block)) {
        std::erase_if(block.uses, [](const MomentPtr& use) { return use->is_over; });
        if (block.uses.empty()) {
          block.is_free = false;
          return const_cast<void*>(data);
        }
      }
    }
    void* data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    std::memset(data, kPoison, bytes);
    memory[data] = {.bytes = bytes, .stream = stream};
    return data;
  }

  void poison_later(void* data, const Block& block) {
    queues_[block.stream].push_back({.kernel = [data, bytes = block.bytes] { std::memset(data, kPoison, bytes); }});
  }

  Block* pinned_block(const void* data) {
    auto next = pinned_memory_.upper_bound(data);
    if (next == pinned_memory_.begin()) {
      return nullptr;
    }
    auto& [begin, block] = *std::prev(next);
    const auto offset = static_cast<const char*>(data) - static_cast<const char*>(begin);
    return !block.is_free && offset < static_cast<std::ptrdiff_t>(block.bytes) ? &block : nullptr;
  }

  bool run_next(std::deque<Work>& queue) {
    if (queue.empty() || (queue.front().wait_for && !queue.front().wait_for->is_over)) {
      return false;
    }
    const Work work = std::move(queue.front());
    queue.pop_front();
    if (work.kernel) {
      work.kernel();
    }
    return true;
  }

  /// One more piece of what `moment` needs.
  bool advance(const MomentPtr& moment) {
    if (moment->is_over) {
      return false;
    }
    std::deque<Work>& queue = queues_[moment->stream];
    return run_next(queue) || (!queue.empty() && advance(queue.front().wait_for));
  }

  bool run_anything() {
    std::vector<std::deque<Work>*> queues;
    for (auto& [stream, queue] : queues_) {
      queues.push_back(&queue);
    }
    std::shuffle(queues.begin(), queues.end(), random_);
    return std::any_of(queues.begin(), queues.end(), [&](auto* queue) { return run_next(*queue); });
  }

  void run_some() {
    if (seed_ == 0 || is_running_) {
      return;
    }
    is_running_ = true;
    for (auto pieces = seed_ == 1 ? ~std::uint64_t{0} : random_() % 4; pieces > 0 && run_anything(); --pieces) {
    }
    is_running_ = false;
  }

  std::recursive_mutex mutex_{};
  std::uint64_t seed_ = 0;
  std::mt19937_64 random_{};
  std::map<StreamKey, std::deque<Work>> queues_{};
  Memory device_memory_{};
  Memory pinned_memory_{};
  MomentPtr held_{};
  std::unique_ptr<Recording> recording_{};
  bool is_apart_ = false;
  c10::StreamId streams_ = 0;
  std::int64_t host_waits_ = 0;
  std::chrono::nanoseconds time_{};
  bool is_running_ = false;
};

// LibTorch keeps pointers to it until the process ends.
Simulator& simulator() {
  static auto* const one = new Simulator;
  return *one;
}

c10::Stream stream_of(c10::Device device, c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, device, id); }

StreamKey key_of(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kType;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, std::exchange(current_device, device.index())};
  }
  c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Stream getStream(c10::Device device) const override {
    const auto index = device.has_index() ? device.index() : current_device;
    return stream_of({kType, index}, current_streams.at(static_cast<std::size_t>(index)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return stream_of(device, simulator().new_stream());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto& current = current_streams.at(static_cast<std::size_t>(stream.device_index()));
    return stream_of(stream.device(), std::exchange(current, stream.id()));
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex device, c10::EventFlag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "the event belongs to another device");
    if (*event == nullptr) {
      *event = new MomentPtr;
    }
    *static_cast<MomentPtr*>(*event) = simulator().enqueue(key_of(stream), [] {});
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      simulator().block(key_of(stream), *static_cast<MomentPtr*>(event));
    }
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || simulator().is_over(*static_cast<MomentPtr*>(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      simulator().reach(*static_cast<MomentPtr*>(event));
    }
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<MomentPtr*>(event); }
  double elapsedTime(void* begin, void* end, c10::DeviceIndex) const override {
    const auto time = (*static_cast<MomentPtr*>(end))->time - (*static_cast<MomentPtr*>(begin))->time;
    return std::chrono::duration<double, std::milli>(time).count();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    simulator().reach(simulator().enqueue(key_of(stream), [] {}));
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    simulator().record(data.get(), key_of(stream));
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(kType, current_device);
    if (bytes == 0) {
      return {nullptr, device};
    }
    void* data = simulator().allocate(bytes, simulator().current(current_device));
    return {data, data, [](void* freed) { simulator().free(freed); }, device};
  }
  void copy_data(void*, const void*, std::size_t) const override { TORCH_CHECK(false, "not simulated"); }
};

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, c10::kCPU};
    }
    void* data = simulator().allocate_pinned(bytes);
    return {data, data, [](void* freed) { simulator().free_pinned(freed); }, c10::kCPU};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

DeviceAllocator device_allocator;
PinnedAllocator pinned_allocator;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void* data) const override { return simulator().is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
};

c10::Device place_of(std::optional<c10::Device> device) {
  return device && device->has_index() ? *device : c10::Device(kType, current_device);
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<c10::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(place_of(device));
  return at::detail::empty_generic(sizes, &device_allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   type.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(place_of(device));
  return at::detail::empty_strided_generic(
      sizes, strides, &device_allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type.value_or(at::kFloat));
}

MomentPtr launch_on(c10::Device device, std::function<void()> kernel) {
  return simulator().enqueue(simulator().current(device.index()), [kernel = std::move(kernel)] {
    const at::NoGradGuard no_grad;
    kernel();
  });
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  const c10::Device device = target.is_cpu() ? source.device() : target.device();
  const at::Tensor& host = target.is_cpu() ? target : source;
  const bool is_late = !host.is_cpu() || (non_blocking && host.is_pinned());
  const MomentPtr copied = launch_on(device, [from = raw(source), to = raw(target)] { to.copy_(from); });
  if (!is_late) {
    simulator().reach(copied);
  } else if (host.is_cpu()) {
    simulator().use_pinned(host.const_data_ptr(), copied);
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  if (target.sizes() != source.sizes()) {
    const at::Tensor larger = at::empty(source.sizes(), target.options());
    target.unsafeGetTensorImpl()->set_storage_keep_dtype(larger.storage());
    target.unsafeGetTensorImpl()->set_sizes_contiguous(source.sizes());
  }
  return copy_from(source, target, /*non_blocking=*/false);
}

at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  launch_on(self.device(), [to = raw(self), value] { to.fill_(value); });
  return self;
}

at::Tensor& zero(at::Tensor& self) { return fill(self, 0); }

at::Tensor& add(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  const at::Tensor added = other.is_cpu() ? other.clone() : raw(other);
  launch_on(self.device(), [to = raw(self), added, alpha] { to.add_(added, alpha); });
  return self;
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  simulator().record(self.storage().data_ptr().get(), key_of(stream));
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                      std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef sizes) { return at::native::view(self, sizes); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("fill_.Scalar", TORCH_FN(fill));
  library.impl("zero_", TORCH_FN(zero));
  library.impl("add_.Tensor", TORCH_FN(add));
  library.impl("record_stream", TORCH_FN(record_stream));
  library.impl("as_strided", TORCH_FN(as_strided));
  library.impl("view", TORCH_FN(view));
}

template <class Change>
c10::IValue with_tensors(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) {
    return change(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> changed;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      changed.push_back(change(tensor));
    }
    return changed;
  }
  return value;
}

c10::IValue raw_value(const c10::IValue& value) {
  return with_tensors(
      value, [](const at::Tensor& tensor) { return tensor.defined() && !tensor.is_cpu() ? raw(tensor) : tensor; });
}

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  with_tensors(value, [&](const at::Tensor& tensor) {
    tensors.push_back(tensor);
    return tensor;
  });
  return tensors;
}

/// The operation on the same memory once more, with the results in that of `results`.
void run_again(const c10::OperatorHandle& operation, torch::jit::Stack arguments, const torch::jit::Stack& results) {
  const at::NoGradGuard no_grad;
  operation.callBoxed(&arguments);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::vector<at::Tensor> to = tensors_of(results[i]);
    const std::vector<at::Tensor> from = tensors_of(arguments[i]);
    for (std::size_t k = 0; k < to.size(); ++k) {
      if (to[k].defined() && to[k].const_data_ptr() != from[k].const_data_ptr()) {
        to[k].copy_(from[k]);
      }
    }
  }
}

void run_on_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  if (!simulator().is_recording()) {
    at::native::cpu_fallback(operation, stack);
    return;
  }
  simulator().record_as([&] {
    const auto& schema = operation.schema();
    torch::jit::Stack arguments;
    for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
      const c10::IValue& value = (*stack)[stack->size() - schema.arguments().size() + i];
      // An output may get its memory only now.
      arguments.push_back(schema.arguments()[i].is_out() ? at::empty({0}, value.toTensor().options().device(c10::kCPU))
                                                         : raw_value(value));
    }
    at::native::cpu_fallback(operation, stack);
    torch::jit::Stack results;
    for (std::size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
      TORCH_CHECK((*stack)[i].isTensor() || (*stack)[i].isTensorList(), "the host waits for work that is recorded");
      results.push_back(raw_value((*stack)[i]));
    }
    return [operation, arguments, results] { run_again(operation, arguments, results); };
  });
}

class Graph final : public DeviceGraph {
 public:
  explicit Graph(const Graph* beside) : memory_(beside != nullptr ? beside->memory_ : simulator().new_stream()) {}

  void record(const std::function<void()>& work) override {
    const StreamKey stream = simulator().current(current_device);
    TORCH_CHECK(stream.second != 0, "the default stream cannot be recorded");
    at::Generator generator = at::globalContext().defaultGenerator(c10::kCPU);
    const at::Tensor random = generator.get_state();
    const auto end = [&] {
      generator.set_state(random);
      return simulator().end_recording();
    };
    const std::int64_t before = simulator().device_bytes({kOfGraphs, memory_});
    simulator().begin_recording(stream, {kOfGraphs, memory_});
    try {
      work();
    } catch (...) {
      end();
      throw;
    }
    kernels_ = end();
    bytes_ = simulator().device_bytes({kOfGraphs, memory_}) - before;
  }
  void replay() override {
    for (const auto& kernel : kernels_) {
      launch(kernel);
    }
  }
  std::int64_t bytes() const override { return bytes_; }

 private:
  const c10::StreamId memory_;
  Kernels kernels_{};
  std::int64_t bytes_ = 0;
};

// Everything else waits, and runs on the CPU.
TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

void register_once() {
  static const bool done = [] {
    c10::register_privateuse1_backend("simulated");
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    c10::SetAllocator(kType, &device_allocator);
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace

c10::Device device(int index) { return {kType, static_cast<c10::DeviceIndex>(index)}; }

void begin(std::uint64_t seed) {
  register_once();
  simulator().begin(seed);
}

void launch(std::function<void()> kernel) { launch_on(device(current_device), std::move(kernel)); }

at::Tensor raw(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

std::unique_ptr<DeviceGraph> make_graph(DeviceGraph* beside) {
  return std::make_unique<Graph>(static_cast<Graph*>(beside));
}

void hold(const c10::Stream& stream) { simulator().hold(key_of(stream)); }

void finish() { simulator().finish(); }

void spend(std::chrono::nanoseconds time) { simulator().spend(time); }

std::int64_t host_waits() { return simulator().host_waits(); }

std::int64_t pinned_bytes() { return simulator().pinned_bytes(); }

}  // namespace lockstep::simulated
