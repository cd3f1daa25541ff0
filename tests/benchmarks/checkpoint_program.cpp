// Saves and loads for checkpoint_bench.py: reads one word per line, does it, answers with the seconds it took.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <ATen/ops/from_blob.h>

#include <lockstep/base/file_system.h>
#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/storage/checkpoint_dir.h>
#include <lockstep/storage/safetensors.h>
#include <lockstep/world/world.h>

namespace {

constexpr std::size_t kBlock = 4 << 20;

struct Free {
  void operator()(std::byte* bytes) const noexcept { std::free(bytes); }
};
using Memory = std::unique_ptr<std::byte[], Free>;

Memory random_bytes(std::size_t size) {
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(4096, size)));
  std::uint64_t state = 1;
  for (std::size_t i = 0; i < size; i += 8) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    std::memcpy(memory.get() + i, &state, 8);
  }
  return memory;
}

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The same bytes, aligned in memory, straight into a new file, one block after the other. The old file is removed
/// after the measurement, as for everybody.
double raw_direct(const std::filesystem::path& folder, std::span<const std::byte> bytes) {
  const auto start = std::chrono::steady_clock::now();
  const std::filesystem::path path = folder / "raw.new";
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
  if (fd < 0) {
    fail("open");
  }
  for (; !bytes.empty(); bytes = bytes.subspan(kBlock)) {
    if (::write(fd, bytes.data(), kBlock) != static_cast<ssize_t>(kBlock)) {
      fail("write");
    }
  }
  if (::fsync(fd) != 0 || ::close(fd) != 0) {
    fail("fsync");
  }
  lockstep::real_file_system().sync_directory(folder);
  const double seconds = seconds_since(start);
  std::filesystem::rename(path, folder / "raw");
  return seconds;
}

/// The checkpoints of a run, as a training loop saves them: always under a new step, and the oldest is deleted.
class Run {
 public:
  Run(const std::filesystem::path& folder, std::span<const lockstep::TensorView> tensors)
      : directory_(folder / "checkpoints"), store_(directory_, {}, world_) {
    for (const lockstep::TensorView& tensor : tensors) {
      auto* data = const_cast<std::byte*>(tensor.bytes.data());  // NOLINT: from_blob has no const
      contents_.tensors["model"].emplace_back(tensor.name, at::from_blob(data, tensor.shape, at::kFloat));
    }
  }

  struct Saved {
    double durable = 0;  // seconds
    double removed = 0;  // until the oldest one is gone, too
  };
  Saved save() {
    const auto start = std::chrono::steady_clock::now();
    store_.save(++step_, contents_);
    Saved saved{.durable = seconds_since(start)};
    wait_for_removal();
    saved.removed = seconds_since(start);
    return saved;
  }

  /// How long the loop stands still for a save in the background.
  double stall() {
    const auto start = std::chrono::steady_clock::now();
    store_.save_in_background(++step_, contents_);
    const double stood = seconds_since(start);
    store_.wait_for_save();
    wait_for_removal();
    return stood;
  }

  double load() {
    const auto start = std::chrono::steady_clock::now();
    const lockstep::CheckpointContents loaded = store_.load(step_);
    return seconds_since(start);
  }

 private:
  void wait_for_removal() const {
    const auto is_removed = [this] {
      const auto names = lockstep::real_file_system().list(directory_);
      return std::ranges::none_of(names, [](const auto& name) { return name.find(".tmp.") != std::string::npos; });
    };
    while (!is_removed()) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  std::filesystem::path directory_;
  lockstep::World world_ = lockstep::World::single(c10::Device("cpu"));
  lockstep::CheckpointStore store_;
  lockstep::CheckpointContents contents_{};
  std::int64_t step_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: checkpoint_program FOLDER MIB\n";
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  const std::size_t size = static_cast<std::size_t>(std::atoi(argv[2])) << 20;
  const Memory memory = random_bytes(size);
  std::vector<lockstep::TensorView> tensors;
  for (std::size_t begin = 0; begin < size; begin += kBlock) {
    tensors.push_back({.name = fmt::format("layer{}.weight", begin / kBlock),
                       .dtype = "F32",
                       .shape = {static_cast<std::int64_t>(kBlock / 4)},
                       .bytes = {memory.get() + begin, kBlock}});
  }
  Run run(folder / "lockstep", tensors);
  for (std::string what; std::getline(std::cin, what);) {
    double seconds = 0;
    if (what == "save") {
      seconds = run.save().durable;
    } else if (what == "save_and_remove") {
      seconds = run.save().removed;
    } else if (what == "raw_direct") {
      seconds = raw_direct(folder, {memory.get(), size});
    } else if (what == "load") {
      seconds = run.load();
    } else if (what == "stall") {
      seconds = run.stall();
    } else {
      return 2;
    }
    std::cout << seconds << std::endl;
  }
}
