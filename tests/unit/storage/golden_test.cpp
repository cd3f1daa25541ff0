// Checkpoints of earlier versions in the repository: they verify, load, and are written again byte for byte.
// tests/data/checkpoints/format-1 was written by tests/support/train_program with 2 ranks, in the middle of epoch 1.
#include <filesystem>
#include <map>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/storage/checkpoint_dir.h>
#include <lockstep/storage/safetensors.h>

#include "base/crc32c.h"
#include "base/json.h"
#include "support/memory_file_system.h"
#include "support/message_of.h"
#include "unit/storage/checkpoint_samples.h"

namespace lockstep {
namespace {

using namespace testing_storage;

const std::filesystem::path kGolden = std::filesystem::path(LOCKSTEP_TEST_DATA) / "checkpoints" / "format-1";

Contents golden_files() {
  Contents files;
  for (const std::string& name : real_file_system().list(kGolden / "step-0000000010")) {
    files[name] = read_file(real_file_system(), kGolden / "step-0000000010" / name);
  }
  return files;
}

TEST(GoldenCheckpoint, OfFormat1VerifiesAndHasItsBytes) {
  const CheckpointDir directory(real_file_system(), kGolden);
  const Manifest manifest = directory.verify(10);
  EXPECT_EQ(manifest.run_id, "golden");
  std::map<std::string, std::uint32_t> checksums;
  for (const auto& [name, bytes] : golden_files()) {
    checksums[name] = crc32c(as_bytes(bytes));
  }
  EXPECT_EQ(checksums, (std::map<std::string, std::uint32_t>{{"MANIFEST.json", 0xdbcaa347U},
                                                             {"model.safetensors", 0xe42cb00dU},
                                                             {"optimizer.safetensors", 0x68bbbf24U},
                                                             {"rng-0.bin", 0x553fc139U},
                                                             {"rng-1.bin", 0xbe8a16ccU},
                                                             {"state.json", 0xf27f7be7U}}));
  const Json state = parse_json(directory.read(10, "state.json"));
  EXPECT_EQ(state.at("format"), 1);
  EXPECT_EQ(state.at("step"), 10);
  EXPECT_EQ(state.at("world_size"), 2);
}

TEST(GoldenCheckpoint, IsWrittenAgainByteForByte) {
  const Contents golden = golden_files();
  const CheckpointDir directory(real_file_system(), kGolden);
  const Manifest manifest = directory.verify(10);
  MemoryFileSystem fs;
  CheckpointDir copy(fs, "/checkpoints", manifest.run_id, manifest.restart);
  const auto writer = copy.begin(10);
  for (const Manifest::File& file : manifest.files) {
    if (!file.name.ends_with(".safetensors")) {
      add_file(*writer, file.name, golden.at(file.name));
      continue;
    }
    const SafetensorsReader reader(real_file_system().open(directory.path(10) / file.name), file.name);
    std::vector<std::string> data;
    std::vector<TensorView> views;
    data.reserve(reader.entries().size());
    for (const TensorEntry& entry : reader.entries()) {
      data.emplace_back(static_cast<std::size_t>(entry.end - entry.begin), '\0');
      reader.read(entry, std::as_writable_bytes(std::span(data.back())));
      views.push_back({.name = entry.name, .dtype = entry.dtype, .shape = entry.shape, .bytes = as_bytes(data.back())});
    }
    writer->add(file.name, [&](const auto& append) { write_safetensors(views, reader.metadata(), append); });
  }
  writer->commit();
  for (const auto& [name, bytes] : golden) {
    EXPECT_TRUE(read_all(*fs.open(copy.path(10) / name)) == bytes) << name;
  }
}

TEST(GoldenCheckpoint, HasTheTensorsOfItsModel) {
  const CheckpointDir directory(real_file_system(), kGolden);
  const SafetensorsReader model(real_file_system().open(directory.path(10) / "model.safetensors"), "model.safetensors");
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const TensorEntry& entry : model.entries()) {
    EXPECT_EQ(entry.dtype, "F32");
    shapes[entry.name] = entry.shape;
  }
  EXPECT_EQ(shapes, (std::map<std::string, std::vector<std::int64_t>>{
                        {"a.weight", {16, 10}}, {"a.bias", {16}}, {"b.weight", {1, 16}}, {"b.bias", {1}}}));
}

TEST(GoldenCheckpoint, OfAFutureFormatIsRefusedByNumber) {
  Contents files = golden_files();
  std::string& manifest = files.at("MANIFEST.json");
  manifest.replace(manifest.find("\"format\": 1"), 11, "\"format\": 2");
  constexpr std::size_t kTail = 25;  // docs/checkpoint_format.md
  const std::string body = manifest.substr(0, manifest.size() - kTail);
  manifest = body + fmt::format("  \"crc32c\": \"{:08x}\"\n}}\n", crc32c(as_bytes(body)));
  MemoryFileSystem fs;
  fs.create_directories("/checkpoints/step-0000000010");
  for (const auto& [name, bytes] : files) {
    overwrite(fs, "/checkpoints/step-0000000010/" + name, bytes);
  }
  const auto error = error_of<CheckpointError>([&] { CheckpointDir(fs, "/checkpoints").verify(10); });
  EXPECT_STREQ(error.what(), "step-0000000010/MANIFEST.json: checkpoint format 2, this build reads 1");
  EXPECT_EQ(error.hint(), "read it with the lockstep version that wrote it");
  EXPECT_EQ(error.exit_code(), ExitCode::bad_data);
}

}  // namespace
}  // namespace lockstep
