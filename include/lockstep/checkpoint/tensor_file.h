// lockstep/checkpoint/tensor_file.h
//
// One .safetensors file <-> named tensors: weights from and for Python, and any other program. Nothing in a file is
// executed.
#pragma once

#include <filesystem>

#include <lockstep/world/named_tensors.h>

namespace [[gnu::visibility("default")]] lockstep {

/// On the CPU, in the order of the file; load_module() puts them into a module. Throws: CheckpointError naming the file
/// and what is wrong with it, IoError.
NamedTensors load_tensors(const std::filesystem::path& file);

/// The same without reading: pages come from the file when they are touched, and belong to this process once written
/// to. Only for files that you trust and that stay as they are: one that shrinks meanwhile ends the process (SIGBUS).
NamedTensors map_tensors(const std::filesystem::path& file);

/// Atomic and durable: a reader finds the old file or the new one. Throws: CheckpointError (a dtype that the format
/// lacks, a name twice), IoError.
void save_tensors(const std::filesystem::path& file, const NamedTensors& tensors);

}  // namespace lockstep
