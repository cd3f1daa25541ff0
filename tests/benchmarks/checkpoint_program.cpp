// Saves and loads for checkpoint_bench.py: reads one word per line, does it, answers with the seconds it took.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
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

/// What the disk can do: the same bytes, aligned in memory, straight to it.
void raw_direct(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
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
}

void save(lockstep::CheckpointDir& directory, std::span<const lockstep::TensorView> tensors, std::size_t bytes) {
  const auto expected = static_cast<std::int64_t>(bytes);
  const auto writer = directory.begin(1, expected);
  writer->add(
      "model.safetensors", [&](const auto& append) { lockstep::write_safetensors(tensors, {}, append); }, expected);
  writer->commit();
}

/// How long a training loop stands still for a save in the background.
class Background {
 public:
  Background(const std::filesystem::path& folder, std::span<const lockstep::TensorView> tensors)
      : store_(folder / "background" / "checkpoints", {}, world_) {
    for (const lockstep::TensorView& tensor : tensors) {
      auto* data = const_cast<std::byte*>(tensor.bytes.data());  // NOLINT: from_blob has no const
      contents_.tensors["model"].emplace_back(tensor.name, at::from_blob(data, tensor.shape, at::kFloat));
    }
  }
  double stall() {
    const auto start = std::chrono::steady_clock::now();
    store_.save_in_background(++step_, contents_);
    const std::chrono::duration<double> stood = std::chrono::steady_clock::now() - start;
    store_.wait_for_save();
    return stood.count();
  }

 private:
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
  lockstep::CheckpointDir directory(lockstep::real_file_system(), folder / "lockstep");
  Background background(folder, tensors);
  for (std::string what; std::getline(std::cin, what);) {
    const auto start = std::chrono::steady_clock::now();
    if (what == "save") {
      save(directory, tensors, size);
    } else if (what == "raw_direct") {
      raw_direct(folder / "raw", {memory.get(), size});
    } else if (what == "load") {
      const auto file = directory.manifest(1).files.at(0);
      const Memory bytes(static_cast<std::byte*>(std::malloc(static_cast<std::size_t>(file.size))));
      directory.read(1, file, {bytes.get(), static_cast<std::size_t>(file.size)});
    } else if (what == "stall") {
      std::cout << background.stall() << std::endl;
      continue;
    } else {
      return 2;
    }
    std::cout << std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() << std::endl;
  }
}
