// Checkpoints of realistic size with all kinds of damage: none is accepted, and the previous one is used.
#include <algorithm>
#include <chrono>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <lockstep/base/error.h>
#include <lockstep/storage/safetensors.h>

#include "faults/storage/scenarios.h"
#include "support/sweep.h"

namespace lockstep {
namespace {

using namespace storage_faults;

constexpr auto kChunk = static_cast<std::size_t>(kChunkBytes);

class Damage : public testing::Test {
 protected:
  static constexpr std::int64_t kBefore = 850;
  static constexpr std::int64_t kNewest = 900;

  /// More than two chunks, so that chunks can be swapped; a second file of the same size.
  static testing_storage::Contents contents(std::int64_t step) {
    std::uint32_t random = static_cast<std::uint32_t>(step);
    testing_storage::Contents files = testing_storage::sample_contents(step);
    for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
      std::string data(2 * kChunk + 4096, '\0');
      for (std::size_t i = 0; i < data.size(); i += 4) {
        random = random * 1'664'525 + 1'013'904'223;
        std::copy_n(reinterpret_cast<const char*>(&random), 4, data.begin() + static_cast<std::ptrdiff_t>(i));
      }
      const std::vector<TensorView> tensors = {{.name = "w",
                                                .dtype = "F32",
                                                .shape = {static_cast<std::int64_t>(data.size() / 4)},
                                                .bytes = testing_storage::as_bytes(data)}};
      write_safetensors(tensors, {}, [&](std::span<const std::byte> bytes) {
        files[name].append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      });
    }
    return files;
  }

  void SetUp() override {
    for (const std::int64_t step : {kBefore, kNewest}) {
      testing_storage::save(checkpoints_, step, contents(step));
    }
    ASSERT_EQ(testing_storage::newest_valid(checkpoints_)->step, kNewest) << "the control";
  }

  Path file(const std::string& name) const { return checkpoints_.path(kNewest) / name; }
  std::string text(const std::string& name) const { return read_file(real_file_system(), file(name)); }
  void put(const std::string& name, const std::string& bytes) const {
    testing_storage::overwrite(real_file_system(), file(name), bytes);
  }

  /// Rejected, with the name of the file.
  bool refused(const std::string& name) const {
    try {
      checkpoints_.verify(kNewest);
      return false;
    } catch (const CheckpointError& error) {
      return std::string(error.what()).starts_with("step-0000000900/" + name);
    }
  }

  bool falls_back() const { return testing_storage::newest_valid(checkpoints_)->step == kBefore; }

  /// Flips bits of an open file; a second call restores them.
  void flip(const std::string& name, std::int64_t offset, int bit) const {
    const int fd = ::open(file(name).c_str(), O_RDWR | O_CLOEXEC);
    char byte = 0;
    ASSERT_EQ(::pread(fd, &byte, 1, offset), 1);
    byte = static_cast<char>(byte ^ (1 << bit));
    ASSERT_EQ(::pwrite(fd, &byte, 1, offset), 1);
    ::close(fd);
  }

  ScratchDir scratch_;
  CheckpointDir checkpoints_{real_file_system(), scratch_.path() / "checkpoints", "run", 0};
};

TEST_F(Damage, OfOneBitInAnyPageIsFound) {
  Sweep sweep("bit flips");
  for (const std::string name : {"model.safetensors", "optimizer.safetensors"}) {
    const auto size = static_cast<std::int64_t>(std::filesystem::file_size(file(name)));
    const std::int64_t stride = std::max<std::int64_t>(4096, size / rounds(120, 2500));
    for (std::int64_t page = 0; page < size; page += stride) {
      const std::int64_t offset = std::min<std::int64_t>(page + sweep.between(0, 4095), size - 1);
      const int bit = sweep.between(0, 7);
      flip(name, offset, bit);
      sweep.count(refused(name + " chunk " + std::to_string(offset / kChunkBytes) + " "));
      flip(name, offset, bit);
    }
    for (const std::int64_t boundary : {kChunkBytes, 2 * kChunkBytes}) {
      for (const std::int64_t offset : {boundary - 1, boundary}) {
        flip(name, offset, 0);
        sweep.count(refused(name) && falls_back());
        flip(name, offset, 0);
      }
    }
  }
  EXPECT_EQ(sweep.lost(), 0);
  EXPECT_GE(sweep.points(), 200);
  EXPECT_EQ(testing_storage::newest_valid(checkpoints_)->step, kNewest) << "the control: all undone";
}

TEST_F(Damage, OfLengthsPagesChunksAndFilesIsFound) {
  Sweep sweep("truncated, extended, zeroed, mixed up");
  const std::string model = text("model.safetensors");
  const std::string optimizer = text("optimizer.safetensors");
  for (std::size_t size = 0; size < model.size(); size += size < 64 ? 1 : model.size() / 40) {
    ASSERT_EQ(::truncate(file("model.safetensors").c_str(), static_cast<off_t>(size)), 0);
    sweep.count(refused("model.safetensors: found " + std::to_string(size) + " bytes"));
    put("model.safetensors", model);
  }
  const auto count = [&](const std::string& bytes) {
    put("model.safetensors", bytes);
    sweep.count(refused("model.safetensors") && falls_back());
    put("model.safetensors", model);
  };
  count(model + '\0');
  count(model + std::string(kChunk, '\0'));
  for (const std::size_t page : {std::size_t{0}, kChunk, 2 * kChunk}) {
    count(std::string(model).replace(page, 4096, 4096, '\0'));
  }
  count(model.substr(kChunk, kChunk) + model.substr(0, kChunk) + model.substr(2 * kChunk));
  count(optimizer);
  put("model.safetensors", optimizer);
  put("optimizer.safetensors", model);
  sweep.count(refused("model.safetensors") && falls_back());
  put("model.safetensors", model);
  put("optimizer.safetensors", optimizer);
  for (const auto& [name, bytes] : contents(kNewest)) {
    if (bytes.empty()) {
      continue;
    }
    put(name, contents(kBefore).at(name));
    sweep.count(refused(name) && falls_back());
    put(name, bytes);
  }
  EXPECT_EQ(sweep.lost(), 0);
  EXPECT_GE(sweep.points(), 100);
  EXPECT_EQ(testing_storage::newest_valid(checkpoints_)->step, kNewest) << "the control: all undone";
}

// An object that is not a regular file replaces a file: it is not opened, not followed, and not waited for.
TEST_F(Damage, OfKindIsFoundAtOnce) {
  Sweep sweep("other things in a file's place");
  const auto begin = std::chrono::steady_clock::now();
  const Path saved = scratch_.path() / "saved";
  for (const std::string name : {"model.safetensors", "state.json", "MANIFEST.json"}) {
    std::filesystem::rename(file(name), saved);
    const auto count = [&](bool made) {
      sweep.count(made && refused(name) && falls_back());
      std::filesystem::remove(file(name));
    };
    count(true);  // missing
    count(std::filesystem::create_directory(file(name)));
    count(::mkfifo(file(name).c_str(), 0600) == 0);
    std::filesystem::create_symlink(saved, file(name));
    count(true);
    std::filesystem::create_symlink("state.json", file(name));
    count(true);
    if (::mknod(file(name).c_str(), S_IFCHR | 0600, ::makedev(1, 5)) == 0) {  // /dev/zero; root only
      count(true);
    }
    std::filesystem::rename(saved, file(name));
    if (::geteuid() != 0) {
      std::filesystem::permissions(file(name), std::filesystem::perms::none);
      EXPECT_THROW(checkpoints_.verify(kNewest), IoError) << "it may be intact";
      std::filesystem::permissions(file(name), std::filesystem::perms::owner_read);
    }
  }
  EXPECT_EQ(sweep.lost(), 0);
  EXPECT_GE(sweep.points(), 15);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST_F(Damage, OfAllLeavesNone) {
  for (const std::int64_t step : {kBefore, kNewest}) {
    std::filesystem::resize_file(checkpoints_.path(step) / "state.json", 3);
  }
  EXPECT_EQ(testing_storage::newest_valid(checkpoints_), std::nullopt);
}

}  // namespace
}  // namespace lockstep
