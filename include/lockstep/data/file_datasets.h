// lockstep/data/file_datasets.h
//
// Data sets in files. The files are mapped, not read: opening one costs nothing, the pages are shared by the ranks of a
// node, and a batch is built straight from them. All of these throw DataError naming the file and what is wrong with
// it, IoError.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include <lockstep/data/dataset.h>

namespace [[gnu::visibility("default")]] lockstep {

/// The array of a .npy file (numpy.save): C order, bool, integers, floats. Writing to it does not change the file.
/// For safetensors there is map_tensors (checkpoint/tensor_file.h).
at::Tensor npy_tensor(const std::filesystem::path& file);

/// Rows of bytes [N, ...], given as floats times `scale`, in one pass.
std::shared_ptr<Dataset> scaled_bytes_dataset(at::Tensor bytes, at::Tensor target = {}, float scale = 1.0F / 255);

struct TokenFile {
  std::int64_t token_bytes = 2;  ///< 2: uint16, 4: uint32, little-endian
  std::int64_t context = 1024;   ///< T, tokens of a sample
  std::int64_t stride = 0;       ///< from one sample to the next; 0: context, so that every token is a target once
};
/// A file of token numbers, one after another. Sample i is input [T], the tokens from i x stride on, and target [T],
/// the tokens after each of them; both int64.
std::shared_ptr<Dataset> token_dataset(const std::filesystem::path& file, const TokenFile& layout = {});

enum class Part { train, test };
/// The four files of MNIST (or of a set of its form) in `directory`: input [N, 1, 28, 28] in 0 .. 1, target int64.
std::shared_ptr<Dataset> mnist_dataset(const std::filesystem::path& directory, Part part);
/// data_batch_1.bin .. data_batch_5.bin, test_batch.bin in `directory`: input [N, 3, 32, 32] in 0 .. 1, target int64.
std::shared_ptr<Dataset> cifar10_dataset(const std::filesystem::path& directory, Part part);

}  // namespace lockstep
