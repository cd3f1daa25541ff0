#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/tensor/tensor_file.h>

#include "support/named_tensors.h"
#include "support/runs.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

NamedTensors some_tensors() {
  return {{"a.weight", at::arange(12, at::kFloat).view({3, 4})},
          {"a.half", at::ones({5}, at::kBFloat16)},
          {"z", at::complex(at::arange(3, at::kFloat), at::arange(3, at::kFloat) + 5)},
          {"flags", at::ones({3}, at::kBool)},
          {"count", at::full({}, 7, at::kLong)},
          {"nothing", at::zeros({0, 3})},
          {"turned", at::arange(6, at::kDouble).view({2, 3}).t()}};
}

TEST(TensorFile, LoadsSavedTensors) {
  const TempDir dir;
  const auto file = dir.path() / "weights.safetensors";
  save_tensors(file, {{"old", at::ones({1})}});
  save_tensors(file, some_tensors());
  expect_equal(load_tensors(file), some_tensors());
  expect_equal(map_tensors(file), some_tensors());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1) << "nothing is left over";
  std::filesystem::create_symlink("weights.safetensors", dir.path() / "link");
  expect_equal(load_tensors(dir.path() / "link"), some_tensors());
}

TEST(TensorFile, HoldsTheValuesOfALazyConjugate) {
  const TempDir dir;
  const auto z = at::complex(at::ones({2}), at::ones({2}));
  save_tensors(dir.path() / "z.safetensors", {{"z", z.conj()}});
  EXPECT_TRUE(at::equal(load_tensors(dir.path() / "z.safetensors").front().second, z.conj().resolve_conj()));
}

TEST(TensorFile, IsNotChangedThroughItsMapping) {
  const TempDir dir;
  const auto file = dir.path() / "weights.safetensors";
  save_tensors(file, some_tensors());
  const std::string before = read_text(file);
  NamedTensors mapped = map_tensors(file);
  at::Tensor weight = mapped.front().second;
  mapped.clear();
  std::filesystem::remove(file);
  EXPECT_EQ(weight.sum().item<float>(), 66) << "the mapping lives as long as one of its tensors";
  weight.zero_();
  save_tensors(file, some_tensors());
  EXPECT_EQ(read_text(file), before);
}

TEST(TensorFile, OfOtherProgramsMayHaveAnyAlignment) {
  const TempDir dir;
  const auto file = dir.path() / "odd.safetensors";
  const std::string header =
      R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"f":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})";
  std::uint64_t size = header.size();
  const float values[] = {1.5F, -2};
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&size), 8);
  out << header << 'x';
  out.write(reinterpret_cast<const char*>(values), 8);
  out.close();
  for (const NamedTensors& tensors : {load_tensors(file), map_tensors(file)}) {
    ASSERT_EQ(tensors.size(), 2U);
    EXPECT_TRUE(at::equal(tensors[1].second, at::tensor({1.5F, -2.0F})));
  }
}

TEST(TensorFile, NamesTheConverterOfAPyTorchFile) {
  const TempDir dir;
  const auto file = dir.path() / "weights.pt";
  for (const std::string& begin : {std::string("PK\3\4\0\0\b\b", 8), std::string("\x80\2\x8a\nl\xfc\x9c\x46", 8)}) {
    std::ofstream(file, std::ios::binary) << begin << "data.pkl";
    try {
      load_tensors(file);
      FAIL();
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), testing::EndsWith("weights.pt: this is a PyTorch file (.pt), not a safetensors file"));
      EXPECT_THAT(error.hint(), HasSubstr("lockstep-convert weights.pt weights.safetensors"));
    }
  }
}

TEST(TensorFile, LeavesOtherDirectoriesUnchanged) {
  const TempDir dir;
  const auto mine = dir.path() / "model.tmp" / "mine";
  std::filesystem::create_directories(mine);
  save_tensors(dir.path() / "model", some_tensors());
  EXPECT_TRUE(std::filesystem::exists(mine));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), std::filesystem::directory_iterator()), 2);
}

TEST(TensorFile, ReportsErrors) {
  const TempDir dir;
  const auto file = dir.path() / "broken.safetensors";
  EXPECT_THROW(load_tensors(file), IoError);
  std::ofstream(file) << "PK, a zip";
  EXPECT_THAT([&] { load_tensors(file); }, ThrowsMessage<CheckpointError>(HasSubstr("broken.safetensors")));
  EXPECT_THAT([&] { map_tensors(file); }, ThrowsMessage<CheckpointError>(HasSubstr("broken.safetensors")));
  EXPECT_THAT(
      [&] {
        save_tensors(file, {{"z", at::zeros({2}, at::kComplexDouble)}});
      },
      ThrowsMessage<CheckpointError>(HasSubstr("z has dtype ComplexDouble")));
  EXPECT_EQ(read_text(file), "PK, a zip");
}

}  // namespace
}  // namespace lockstep
