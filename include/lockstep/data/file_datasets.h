// lockstep/data/file_datasets.h
//
// Data sets in files. The files are memory-mapped: opening costs nothing, the ranks of a node share the pages, and
// batches are built directly from them, unless a function says that it copies. All functions throw IoError, and
// DataError naming the file and the problem.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include <lockstep/data/dataset.h>

namespace [[gnu::visibility("default")]] lockstep {

/// The array of a .npy file (numpy.save): C order; bool, integers or floats. Writing to the tensor does not change the
/// file. For safetensors use map_tensors (tensor/tensor_file.h).
at::Tensor npy_tensor(const std::filesystem::path& file);

/// Rows of bytes [N, ...], converted to floats and multiplied by `scale` in one pass.
std::shared_ptr<Dataset> scaled_bytes_dataset(at::Tensor bytes, at::Tensor target = {}, float scale = 1.0F / 255);

/// Layout of a file of token numbers, and the samples that are cut from it.
struct TokenFile {
  std::int64_t token_bytes = 2;  ///< 2: uint16, 4: uint32, little-endian
  std::int64_t context = 1024;   ///< T, tokens per sample
  std::int64_t stride = 0;       ///< distance between two samples; 0: context, so that every token is a target once
};
/// A file of token numbers. Sample i has input [T], the tokens from i x stride on, and target [T], the token after each
/// of them; both int64.
std::shared_ptr<Dataset> token_dataset(const std::filesystem::path& file, const TokenFile& layout = {});

/// Which part of MNIST or CIFAR-10.
enum class DatasetPart { train, test };
/// The four files of MNIST (or of a data set in the same format) in `directory`: input [N, 1, 28, 28] in 0 .. 1, target
/// int64.
std::shared_ptr<Dataset> mnist_dataset(const std::filesystem::path& directory, DatasetPart part);
/// data_batch_1.bin .. data_batch_5.bin, test_batch.bin in `directory`: input [N, 3, 32, 32] in 0 .. 1, target int64.
/// Each rank copies the bytes, which stand beside the labels in the files.
std::shared_ptr<Dataset> cifar10_dataset(const std::filesystem::path& directory, DatasetPart part);

}  // namespace lockstep
