// Makes a callback in one expression.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <lockstep/trainer/callback.h>

namespace lockstep {

class AtStage final : public Callback {
 public:
  AtStage(std::uint32_t stages, std::function<void(const StageContext&)> work, std::string name)
      : stages_(stages), work_(std::move(work)), name_(std::move(name)) {}
  std::string name() const override { return name_; }
  std::uint32_t stages() const override { return stages_; }
  void on(const StageContext& context) override { work_(context); }

 private:
  std::uint32_t stages_;
  std::function<void(const StageContext&)> work_;
  std::string name_;
};

inline std::shared_ptr<Callback> at_stage(std::uint32_t stages, std::function<void(const StageContext&)> work,
                                          std::string name = "at_stage") {
  return std::make_shared<AtStage>(stages, std::move(work), std::move(name));
}
inline std::shared_ptr<Callback> at_stage(Stage stage, std::function<void(const StageContext&)> work,
                                          std::string name = "at_stage") {
  return at_stage(static_cast<std::uint32_t>(stage), std::move(work), std::move(name));
}

}  // namespace lockstep
