// Functions that the readers of launch variables share. Torch-free.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/base/variables.h>
#include <lockstep/environment/identity.h>

#include "environment/text_file.h"

namespace lockstep {

/// Reads variables strictly, records which ones it read, and collects all problems instead of stopping at the first.
class VariableReader {
 public:
  static constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
  /// Replaces a number that was rejected, so that later checks do not report it again.
  static constexpr int kRefused = 0;

  VariableReader(const Variables& variables, const ReadText& files) : variables_(variables), files_(files) {}

  bool has(const char* name) const { return variables_.has(name); }
  /// Read without being recorded.
  std::optional<std::string> peek(const char* name) const { return variables_.get(name); }

  /// nullopt: not set, or not a whole number from `min` to `max` (then a problem).
  std::optional<int> number(const char* name, std::int64_t min, std::int64_t max = kMaxInt);
  std::optional<std::string> text(const char* name);  ///< an empty one is a problem
  std::optional<std::string> host(const char* name);  ///< a host name or an address

  /// The variable is required; kRefused and "" after a problem.
  int required_number(const char* name, std::int64_t min, std::string_view meaning, std::string_view hint = {});
  std::string required_text(const char* name, std::string_view meaning, std::string_view hint = {});

  /// A problem if `value`, which starts at 0, is not below its limit.
  void check_below(const char* name, int value, const char* limit_name, int limit);

  std::optional<std::string> file(const std::string& path) const { return files_(path); }
  void missing(const char* name, std::string_view meaning, std::string_view hint = {});
  void problem(std::string what, std::string hint = {}) { problems_.push_back({std::move(what), std::move(hint)}); }

  const std::vector<std::string>& names() const noexcept { return names_; }
  const std::vector<Problem>& problems() const noexcept { return problems_; }

 private:
  std::optional<std::string> noted(const char* name);

  const Variables& variables_;
  const ReadText& files_;
  std::vector<std::string> names_{};
  std::vector<Problem> problems_{};
};

/// detect_identity with other files than those of this machine.
std::optional<Identity> detect_identity(const Variables& variables, const ReadText& files);

/// Whether `text` can be a host name or an address.
bool is_host(std::string_view text);

/// A port that all ranks of a launch compute alike, and another launch probably not: from 20000 to 29999, below the
/// ephemeral ports.
int derived_port(std::string_view launch);

/// MASTER_ADDR and MASTER_PORT; both are required unless the world size is 1.
void read_master(VariableReader& reader, Identity& identity);

// One per launcher. nullopt: not this launcher.
std::optional<Identity> read_torchrun(VariableReader& reader);  // also our own launcher
std::optional<Identity> read_plain(VariableReader& reader);     // RANK and WORLD_SIZE of one process per node
std::optional<Identity> read_open_mpi(VariableReader& reader);
std::optional<Identity> read_hydra(VariableReader& reader);
std::optional<Identity> read_mvapich2(VariableReader& reader);
std::optional<Identity> read_lsf(VariableReader& reader);
std::optional<Identity> read_slurm_step(VariableReader& reader);
std::optional<Identity> read_sagemaker(VariableReader& reader);
// For a process without a launcher, if that looks like a mistake.
std::optional<Identity> read_slurm_allocation(VariableReader& reader);
std::optional<Identity> read_torchrun_settings(VariableReader& reader);

/// SageMaker's hosts, sorted; empty if the variable is not set, or after a problem.
std::vector<std::string> read_sagemaker_hosts(VariableReader& reader);

}  // namespace lockstep
