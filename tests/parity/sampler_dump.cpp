// Prints the orders of our torch-free re-implementations of torch.randperm and DistributedSampler, for
// sampler_parity.py. One request per line of standard input, one line of indices each:
//   randperm N SEED
//   checksum N SEED      of the whole permutation, for large N
//   rank SIZE GLOBAL_BATCH WORLD SEED EPOCH SHUFFLE DROP_LAST RANK
#include <cstdint>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <lockstep/sampling/distributed_sampler.h>

namespace {

using lockstep::DistributedSampler;

void print(const std::vector<std::int64_t>& values) {
  std::string line;
  for (const std::int64_t value : values) {
    line += std::to_string(value) + ' ';
  }
  std::cout << line << '\n';
}

// Sum of value x (position + 1), modulo 2^64: cheap to compute in PyTorch as well.
std::uint64_t checksum(const std::vector<std::int64_t>& values) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sum += static_cast<std::uint64_t>(values[i]) * (i + 1);
  }
  return sum;
}

std::vector<std::int64_t> rank_list(std::istream& request) {
  DistributedSampler::Options options;
  std::int64_t epoch = 0;
  int rank = 0;
  request >> options.size >> options.global_batch >> options.world_size >> options.seed >> epoch >>
      options.sampler.shuffle >> options.sampler.drop_last >> rank;
  options.sampler.order = lockstep::SampleOrder::pytorch;
  const DistributedSampler sampler(options);
  std::vector<std::int64_t> all;
  std::vector<std::int64_t> step;
  for (std::int64_t consumed = 0; consumed < sampler.epoch_length(); consumed += sampler.step_samples(consumed)) {
    sampler.rank_ids(epoch, consumed, rank, step);
    all.insert(all.end(), step.begin(), step.end());
  }
  return all;
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream request(line);
    std::string kind;
    request >> kind;
    if (kind == "rank") {
      print(rank_list(request));
      continue;
    }
    std::int64_t n = 0;
    std::uint64_t seed = 0;
    request >> n >> seed;
    if (kind == "checksum") {
      std::cout << checksum(lockstep::torch_randperm(n, seed)) << '\n';
    } else {
      print(lockstep::torch_randperm(n, seed));
    }
  }
}
