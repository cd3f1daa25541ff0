// lockstep/tensor/tensor_file.h
//
// Files of weights <-> named tensors: exchanges weights with Python and other programs. Loading executes no code.
#pragma once

#include <filesystem>
#include <string>

#include <lockstep/tensor/named_tensors.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Tensors on the CPU, in the order of the file; load_module() copies them into a module. The file is one of
/// safetensors, or of Python's torch.save (since PyTorch 1.6) with a dictionary of tensors, such as a state dict. If
/// the dictionary is one of several things in the file, `key` names it: load_tensors("last.ckpt", "state_dict"). The
/// key may be left out if no other entry is a dictionary of tensors. Tensors that share memory in a file of torch.save
/// share it here. Throws: CheckpointError naming the file and the problem, IoError.
NamedTensors load_tensors(const std::filesystem::path& file, const std::string& key = {});

/// Safetensors only, without reading: pages are read on first access, and a page that is written to becomes private to
/// this process. Only for files that you trust and that do not change: if the file shrinks, the process ends (SIGBUS).
NamedTensors map_tensors(const std::filesystem::path& file);

/// Atomic and durable: a reader sees either the old or the new file. Throws: CheckpointError (a dtype that the format
/// does not have, a duplicate name), IoError.
void save_tensors(const std::filesystem::path& file, const NamedTensors& tensors);

}  // namespace lockstep
