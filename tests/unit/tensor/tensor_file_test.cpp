#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/tensor/tensor_file.h>

#include "storage/safetensors_item_size.h"
#include "support/message_of.h"
#include "support/runs.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "tensor/dtype_names.h"

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

TEST(TensorFile, HasDtypesOfTheSizesThatLibTorchKnows) {
  for (const auto& [type, name] : kDtypeNames) {
    EXPECT_EQ(safetensors_item_size(name), static_cast<std::int64_t>(c10::elementSize(type))) << name;
  }
}

TEST(TensorFile, HoldsTheValuesOfALazyConjugate) {
  const TempDir dir;
  const auto z = at::complex(at::ones({2}), at::ones({2}));
  save_tensors(dir.path() / "z.safetensors", {{"z", z.conj()}});
  EXPECT_TRUE(at::equal(load_tensors(dir.path() / "z.safetensors").front().second, z.conj().resolve_conj()));
  save_tensors(dir.path() / "z.safetensors", {{"z", at::imag(z.conj())}});
  EXPECT_TRUE(at::equal(load_tensors(dir.path() / "z.safetensors").front().second, at::full({2}, -1.0F)));
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

const std::filesystem::path kStateDict = std::filesystem::path(TORCH_SAVE_DIR) / "state_dict.pt";

TEST(TorchFile, LoadsAStateDict) {
  const NamedTensors tensors = load_tensors(kStateDict);
  EXPECT_THAT(names(tensors), testing::ElementsAre("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean",
                                                   "1.running_var", "1.num_batches_tracked"));
  EXPECT_EQ(tensors[0].second.sizes(), at::IntArrayRef({2, 3}));
  EXPECT_FLOAT_EQ(tensors[0].second[0][0].item<float>(), -0.0043225177F);
  EXPECT_TRUE(at::equal(tensors[5].second, at::ones({2})));
  EXPECT_TRUE(at::equal(tensors[6].second, at::zeros({}, at::kLong)));
}

TEST(TorchFile, IsRefusedWhenItIsCutOff) {
  const TempDir dir;
  const auto file = dir.path() / "weights.pt";
  const std::string whole = read_text(kStateDict);
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    std::ofstream(file, std::ios::binary) << whole.substr(0, size);
    EXPECT_THROW(load_tensors(file), CheckpointError) << size;
  }
}

// A flipped bit is refused, or it is in a part of the archive that nothing reads.
TEST(TorchFile, NeverLoadsOtherValues) {
  const TempDir dir;
  const auto file = dir.path() / "weights.pt";
  const std::string whole = read_text(kStateDict);
  const NamedTensors expected = load_tensors(kStateDict);
  int refused = 0;
  for (std::size_t i = 0; i < whole.size(); i += 3) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << i % 8));
    std::ofstream(file, std::ios::binary) << damaged;
    try {
      expect_equal(load_tensors(file), expected);
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr("weights.pt: "));
      ++refused;
    }
  }
  EXPECT_GT(refused, 300);
}

TEST(TorchFile, OfTheOldFormatIsNamed) {
  const TempDir dir;
  const auto file = dir.path() / "weights.pt";
  std::ofstream(file, std::ios::binary) << std::string("\x80\2\x8a\nl\xfc\x9c\x46", 8) << "more";
  EXPECT_THAT(message_of([&] { load_tensors(file); }),
              testing::AllOf(HasSubstr("in the format before PyTorch 1.6"), HasSubstr("save it again in Python")));
}

TEST(TorchFile, HasKeysAndIsNotMapped) {
  const TempDir dir;
  save_tensors(dir.path() / "weights.safetensors", some_tensors());
  EXPECT_THAT(message_of([&] { load_tensors(dir.path() / "weights.safetensors", "model"); }),
              testing::AllOf(HasSubstr("found no file of torch.save"), HasSubstr("leave the key out")));
  EXPECT_THAT(message_of([&] { load_tensors(kStateDict, "model"); }), HasSubstr("found no key model"));
  EXPECT_THAT(message_of([&] { map_tensors(kStateDict); }), HasSubstr("load_tensors() reads it"));
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
