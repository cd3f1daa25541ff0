#include "ipc/progress_record.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/limit_hint.h"
#include "base/text.h"

namespace lockstep {
namespace {

constexpr const char* kKeepDescriptors =
    "programs and scripts must leave the descriptors 3 to 5 open, which they inherit from the launcher";

[[noreturn]] void throw_board_error(std::string_view what, const char* hint) {
  throw LaunchError(fmt::format("progress board: {}", what), hint);
}

// In the order of the enumerators.
constexpr auto kPhaseNames = std::to_array<std::string_view>(
    {"start-up", "rendezvous", "preparation", "resume", "data", "copy", "Task::optimize", "forward", "backward",
     "optimizer", "the program's own code", "callback", "report", "validation", "test", "prediction", "save", "finish",
     "teardown"});
static_assert(kPhaseNames.size() == kPhaseCount);

constexpr auto kOperationNames =
    std::to_array<std::string_view>({"none", "all-reduce", "broadcast", "all-gather", "barrier", "any", "all", "gather",
                                     "broadcast of bytes", "taking turns"});
static_assert(kOperationNames.size() == static_cast<std::size_t>(Operation::turn) + 1);

/// Of a value from shared memory, where a rank that crashed may have left anything.
template <typename Names, typename Enum>
std::optional<std::string_view> name_in(const Names& names, Enum value) noexcept {
  const auto index = static_cast<std::size_t>(value);
  return index < names.size() ? std::optional(names[index]) : std::nullopt;
}

std::string phase_text(const ProgressView& view) {
  return fmt::format("{}{}", to_string(view.phase), printable(callback_of(view)));
}

}  // namespace

std::string_view to_string(Phase phase) noexcept { return name_in(kPhaseNames, phase).value_or("unknown phase"); }

std::string_view to_string(Operation operation) noexcept {
  return name_in(kOperationNames, operation).value_or("unknown operation");
}

void SharedText::set(std::string_view text) noexcept {
  Copy copy{};
  text.copy(copy.data(), copy.size());
  for (std::size_t i = 0; i < words_.size(); ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, copy.data() + i * sizeof word, sizeof word);
    words_[i].store(word, std::memory_order_relaxed);
  }
}

SharedText::Copy SharedText::get() const noexcept {
  Copy copy{};
  for (std::size_t i = 0; i < words_.size(); ++i) {
    const std::uint64_t word = words_[i].load(std::memory_order_relaxed);
    std::memcpy(copy.data() + i * sizeof word, &word, sizeof word);
  }
  return copy;
}

void ProgressRecord::set_callback(std::string_view name, std::string_view where) noexcept {
  constexpr std::size_t kLongestName = 30;  // leaves room for the stage
  std::array<char, SharedText::kSize> text{};
  const auto end = fmt::format_to_n(text.data(), text.size(), " '{}' ({})", name.substr(0, kLongestName), where);
  callback.set({text.data(), std::min(end.size, text.size())});
  set_phase(Phase::callback);
}

ProgressView view(const ProgressRecord& record) noexcept {
  const Phase phase = record.phase.load(std::memory_order_relaxed);
  return {.beats = record.beats.load(std::memory_order_relaxed),
          .step = record.step.load(std::memory_order_relaxed),
          .collectives = record.collectives.load(std::memory_order_relaxed),
          .bytes = record.bytes.load(std::memory_order_relaxed),
          .phase = phase,
          .operation = record.operation.load(std::memory_order_relaxed),
          .callback = phase == Phase::callback ? record.callback.get() : SharedText::Copy{}};
}

std::string_view callback_of(const ProgressView& view) noexcept {
  const auto& text = view.callback;
  return {text.data(), static_cast<std::size_t>(std::ranges::find(text, '\0') - text.begin())};
}

std::string to_string(const ProgressView& view) {
  std::string text = view.step >= 0 ? fmt::format("step {}, {}", view.step, phase_text(view)) : phase_text(view);
  const std::string collective = collective_of(view);
  return collective.empty() ? text : text + "," + collective;
}

std::string collective_of(const ProgressView& view) {
  if (view.operation == Operation::none) {
    return {};
  }
  const std::string size = view.bytes > 0 ? fmt::format(" of {}", human_bytes(view.bytes)) : std::string();
  return fmt::format(" in collective {}: {}{}", view.collectives, to_string(view.operation), size);
}

std::string place_of(const ProgressView& view) {
  if (view.beats == 0) {
    return {};
  }
  if (view.step < 0) {
    return fmt::format("in {}", phase_text(view));
  }
  return view.phase == Phase::finish ? fmt::format("after step {}", view.step)
                                     : fmt::format("at step {} in {}", view.step, phase_text(view));
}

ProgressBoard::ProgressBoard(int ranks) : fd_(memfd_create("lockstep-progress", MFD_CLOEXEC)), size_(ranks) {
  if (!fd_.is_open() || ftruncate(fd_.get(), static_cast<off_t>(sizeof(ProgressRecord)) * ranks) != 0) {
    throw_board_error(std::strerror(errno), limit_hint(errno));
  }
  map();
  std::uninitialized_default_construct_n(records_, size_);
}

ProgressBoard::ProgressBoard(int fd, int rank) : fd_(fcntl(fd, F_DUPFD_CLOEXEC, 0)) {
  struct stat status {};
  if (!fd_.is_open() || fstat(fd_.get(), &status) != 0) {
    throw_board_error(std::strerror(errno), kKeepDescriptors);
  }
  size_ = static_cast<int>(status.st_size / static_cast<off_t>(sizeof(ProgressRecord)));
  if (rank >= size_) {
    throw_board_error(fmt::format("found {} records, expected more than {}", size_, rank), kKeepDescriptors);
  }
  map();
}

ProgressBoard::ProgressBoard(ProgressBoard&& other) noexcept
    : fd_(std::move(other.fd_)), size_(other.size_), records_(std::exchange(other.records_, nullptr)) {}

ProgressBoard::~ProgressBoard() {
  if (records_ != nullptr) {
    munmap(records_, sizeof(ProgressRecord) * static_cast<std::size_t>(size_));
  }
}

void ProgressBoard::map() {
  void* memory = mmap(nullptr, sizeof(ProgressRecord) * static_cast<std::size_t>(size_), PROT_READ | PROT_WRITE,
                      MAP_SHARED, fd_.get(), 0);
  if (memory == MAP_FAILED) {
    throw_board_error(std::strerror(errno), limit_hint(errno));
  }
  records_ = static_cast<ProgressRecord*>(memory);
}

}  // namespace lockstep
