#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/data/file_datasets.h>

#include "data/recycled_memory.h"
#include "support/message_of.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using Ids = std::vector<std::int64_t>;
namespace fs = std::filesystem;

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string idx_header(const std::vector<unsigned char>& sizes) {
  std::string header = {0, 0, 8, static_cast<char>(sizes.size())};
  for (const unsigned char size : sizes) {
    header += std::string(3, '\0') + static_cast<char>(size);
  }
  return header;
}

TEST(FileDatasets, GiveWindowsOfTokens) {
  const TempDir dir;
  std::vector<std::uint16_t> tokens(100);
  std::iota(tokens.begin(), tokens.end(), std::uint16_t{65'000});
  write_text(dir.path() / "train.bin", bytes_of(tokens));
  const auto data = token_dataset(dir.path() / "train.bin", {.context = 8});
  EXPECT_EQ(data->size(), 12);
  const Batch batch = data->get(Ids{3, 0, 11}, {});
  const at::Tensor starts = at::tensor({65'024, 65'000, 65'088}, at::kLong).unsqueeze(1);
  EXPECT_TRUE(at::equal(batch.input, starts + at::arange(8)));
  EXPECT_TRUE(at::equal(batch.target, starts + at::arange(1, 9)));
  EXPECT_THROW(data->get(Ids{12}, {}), DataError);
  EXPECT_EQ(token_dataset(dir.path() / "train.bin", {.context = 8, .stride = 1})->size(), 92);
  EXPECT_EQ(token_dataset(dir.path() / "train.bin", {.token_bytes = 4, .context = 8})->size(), 6);
  EXPECT_THAT(message_of([&] { token_dataset(dir.path() / "train.bin", {.context = 100}); }),
              HasSubstr("train.bin: found 100 tokens, expected at least 100 and one more"));
  EXPECT_THAT(message_of([&] { token_dataset(dir.path() / "train.bin", {.token_bytes = 3}); }),
              HasSubstr("token_bytes is 3"));
  EXPECT_THAT(message_of([&] { token_dataset(dir.path() / "train.bin", {.context = 8, .stride = -4}); }),
              HasSubstr("stride is -4, expected 0 or more"));
  tokens.back() = 0;
  write_text(dir.path() / "other.bin", bytes_of(tokens));
  EXPECT_NE(data->fingerprint(), token_dataset(dir.path() / "other.bin", {.context = 8})->fingerprint());
}

TEST(FileDatasets, MapNumpysArrays) {
  const TempDir dir;
  const std::string dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }" + std::string(58, ' ') + "\n";
  std::string file = "\x93NUMPY\x01";
  file += '\0';
  file += static_cast<char>(dict.size());
  file += '\0';
  file += dict + bytes_of(std::vector<float>{1, 2, 3, 4, 5, 6});
  write_text(dir.path() / "a.npy", file);
  npy_tensor(dir.path() / "a.npy").fill_(0);
  const at::Tensor rows = npy_tensor(dir.path() / "a.npy");
  EXPECT_TRUE(at::equal(rows, at::arange(1, 7, at::kFloat).reshape({3, 2}))) << "writing does not reach the file";
  fs::remove(dir.path() / "a.npy");  // the tensor keeps the file
  EXPECT_TRUE(
      at::equal(tensor_dataset(rows)->get(Ids{2, 0}, {}).input, at::tensor({5.F, 6.F, 1.F, 2.F}).reshape({2, 2})));
  write_text(dir.path() / "b.npy", file.substr(0, file.size() - 1));
  EXPECT_THAT(message_of([&] { npy_tensor(dir.path() / "b.npy"); }),
              HasSubstr("b.npy: found 23 bytes of data, but the header says 24"));
  write_text(dir.path() / "c.npy", file.substr(0, 10) + " " + file.substr(10));  // not aligned
  EXPECT_THAT(message_of([&] { npy_tensor(dir.path() / "c.npy"); }), HasSubstr("c.npy: "));
}

TEST(FileDatasets, ReportErrorsOfAFile) {
  const TempDir dir;
  write_text(dir.path() / "packed", "\x1f\x8b and more");
  write_text(dir.path() / "empty", "");
  EXPECT_THAT(message_of([&] { npy_tensor(dir.path() / "packed"); }),
              HasSubstr("packed: this is a gzip file, expected an unpacked one | gunzip -k "));
  EXPECT_THAT(message_of([&] { token_dataset(dir.path() / "empty"); }), HasSubstr("empty: the file is empty"));
  EXPECT_THAT(message_of([&] { npy_tensor(dir.path()); }), HasSubstr("it is not a regular file"));
}

TEST(FileDatasets, ReadMnist) {
  const TempDir dir;
  std::string images;
  for (int i = 0; i < 3 * 4; ++i) {
    images += static_cast<char>(i * 20);
  }
  write_text(dir.path() / "train-images-idx3-ubyte", idx_header({3, 2, 2}) + images);
  EXPECT_THAT(message_of([&] { mnist_dataset(dir.path(), DatasetPart::train); }),
              HasSubstr("train-labels-idx1-ubyte: no such file | expected in " + dir.path().string() +
                        ": train-images-idx3-ubyte, train-labels-idx1-ubyte"));
  write_text(dir.path() / "train-labels-idx1-ubyte.gz", "x");
  EXPECT_THAT(message_of([&] { mnist_dataset(dir.path(), DatasetPart::train); }), HasSubstr("| gunzip -k "));
  write_text(dir.path() / "train-labels-idx1-ubyte", idx_header({3}) + "\x05\x01\x09");
  const auto data = mnist_dataset(dir.path(), DatasetPart::train);
  ASSERT_EQ(data->size(), 3);
  const Batch batch = data->get(Ids{2, 0}, {});
  EXPECT_TRUE(at::equal(batch.target, at::tensor({9, 5}, at::kLong)));
  EXPECT_EQ(batch.input.sizes(), (at::IntArrayRef{2, 1, 2, 2}));
  EXPECT_TRUE(at::allclose(batch.input[0].flatten(), at::tensor({160., 180., 200., 220.}, at::kFloat) / 255));
  write_text(dir.path() / "train-labels-idx1-ubyte", idx_header({2}) + "\x05\x01");
  EXPECT_THAT(message_of([&] { mnist_dataset(dir.path(), DatasetPart::train); }),
              HasSubstr("found images [3, 2, 2] and labels [2]"));
}

TEST(FileDatasets, ReadCifar10) {
  const TempDir dir;
  for (int file = 1; file <= 5; ++file) {
    std::string records;
    for (int record = 0; record < 2; ++record) {
      records += static_cast<char>(file);
      records += std::string(3072, static_cast<char>(10 * file + record));
    }
    if (file == 5) {
      EXPECT_THAT(message_of([&] { cifar10_dataset(dir.path(), DatasetPart::train); }),
                  HasSubstr("data_batch_5.bin: no such file"));
    }
    write_text(dir.path() / ("data_batch_" + std::to_string(file) + ".bin"), records);
  }
  const auto data = cifar10_dataset(dir.path(), DatasetPart::train);
  ASSERT_EQ(data->size(), 10);
  const Batch batch = data->get(Ids{9, 2}, {});
  EXPECT_TRUE(at::equal(batch.target, at::tensor({5, 2}, at::kLong)));
  EXPECT_EQ(batch.input.sizes(), (at::IntArrayRef{2, 3, 32, 32}));
  EXPECT_TRUE(at::allclose(batch.input[0], at::full({3, 32, 32}, 51. / 255)));
  EXPECT_TRUE(at::allclose(batch.input[1], at::full({3, 32, 32}, 20. / 255)));
  write_text(dir.path() / "test_batch.bin", std::string(3073, '\x0a'));
  EXPECT_THAT(message_of([&] { cifar10_dataset(dir.path(), DatasetPart::test); }),
              HasSubstr("test_batch.bin: sample 0 has label 10"));
}

TEST(FileDatasets, ScaleBytes) {
  const at::Tensor bytes = at::arange(256).to(at::kByte).reshape({64, 4});
  const Ids ids = {63, 0, 17};
  const at::Tensor rows = bytes.index_select(0, at::tensor(at::IntArrayRef(ids)));
  EXPECT_TRUE(at::equal(scaled_bytes_dataset(bytes, {}, 0.5F)->get(ids, {}).input, rows.to(at::kFloat) * 0.5F));
  const at::Tensor spread = bytes.t().contiguous().t();  // not contiguous
  EXPECT_TRUE(at::equal(scaled_bytes_dataset(spread, {}, 0.5F)->get(ids, {}).input, rows.to(at::kFloat) * 0.5F));
  EXPECT_THROW(scaled_bytes_dataset(bytes.to(at::kFloat)), DataError);
  EXPECT_THROW(scaled_bytes_dataset(bytes, {}, 0), DataError);
}

TEST(RecycledMemory, IsReusedOnlyWhenItIsFree) {
  RecycledMemory memory;
  at::Tensor first = memory.take({100, 4}, at::kFloat);
  const void* const place = first.const_data_ptr();
  const at::Tensor second = memory.take({100, 4}, at::kFloat);
  EXPECT_NE(second.const_data_ptr(), place);
  at::Tensor view = first.slice(0, 50, 60);
  first.reset();
  EXPECT_NE(memory.take({100, 4}, at::kFloat).const_data_ptr(), place) << "a view of it lives";
  view.reset();
  const at::Tensor smaller = memory.take({90, 4}, at::kInt);
  EXPECT_TRUE(smaller.is_contiguous());
  EXPECT_EQ(smaller.scalar_type(), at::kInt);
  const at::Tensor other = memory.take({100, 4}, at::kFloat);
  EXPECT_NE(smaller.const_data_ptr(), other.const_data_ptr());
  for (int i = 0; i < 1000; ++i) {
    memory.take({i + 1}, at::kDouble).zero_();
  }
  EXPECT_EQ(second.sizes(), (at::IntArrayRef{100, 4}));
}

}  // namespace
}  // namespace lockstep
