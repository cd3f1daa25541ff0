#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/data/image_folder.h>

#include "base/crc32c.h"
#include "base/exception_text.h"
#include "base/mapped.h"
#include "base/paths.h"
#include "base/text.h"
#include "data/image_file.h"
#include "data/sample_error.h"
#include "data/stacker.h"

namespace lockstep {

namespace {

/// Shape [1, 1, H, W], from [1, 3, H, W]. The weights are those of Pillow, in 16-bit fixed point.
at::Tensor gray_of(const at::Tensor& rgb) {
  const at::Tensor weights = at::tensor({19595, 38470, 7471}, at::kInt).view({1, 3, 1, 1});
  return at::bitwise_right_shift((rgb.to(at::kInt) * weights).sum(1, /*keepdim=*/true, at::kInt) + 32768, 16)
      .to(at::kByte);
}

/// Shape [C, H, W].
at::Tensor read_image(const std::filesystem::path& file, const ImageFolderOptions& options) {
  const std::string bytes = read_file(real_file_system(), follow_links(file), /*max_bytes=*/std::int64_t{1} << 30);
  at::Tensor pixels;
  try {
    decode_image(std::as_bytes(std::span(bytes)), [&](std::int64_t height, std::int64_t width) {
      pixels = at::empty({1, height, width, 3}, at::TensorOptions(at::kByte));
      return pixels.mutable_data_ptr<std::uint8_t>();
    });
  } catch (const Error& error) {
    throw DataError(fmt::format("{}: {}", file.string(), exception_text(error)), error.hint());
  } catch (const std::exception& error) {  // no memory for an image of this size
    throw sample_error(file.string(), exception_text(error));
  }
  at::Tensor image = pixels.permute({0, 3, 1, 2});
  if (options.gray) {
    image = gray_of(image);
  }
  if (options.height > 0) {
    image = at::_upsample_bilinear2d_aa(image, {options.height, options.width}, /*align_corners=*/false);
  }
  image = image.squeeze(0).contiguous();
  return options.bytes ? image : image.to(at::kFloat).div_(255);
}

class ImageFiles final : public Dataset {
 public:
  ImageFiles(std::vector<std::filesystem::path> files, std::vector<std::int64_t> targets,
             const ImageFolderOptions& options, std::string fingerprint)
      : files_(std::move(files)),
        targets_(std::move(targets)),
        options_(options),
        fingerprint_(std::move(fingerprint)) {}

  std::int64_t size() const override { return std::ssize(files_); }
  std::string fingerprint() const override { return fingerprint_; }

  Batch get(std::span<const std::int64_t> ids, const SampleSeed&) const override {
    check_ids("image folder", ids, size());
    Stacker stacker(ids.size());
    for (const std::int64_t& id : ids) {
      const auto index = static_cast<std::size_t>(id);
      stacker.add(id, with_sample_names({&id, 1}, [&] {
                    return Batch{.input = read_image(files_[index], options_),
                                 .target = at::scalar_tensor(targets_[index], at::kLong)};
                  }));
    }
    return stacker.stacked();
  }

 private:
  std::vector<std::filesystem::path> files_;
  std::vector<std::int64_t> targets_;
  ImageFolderOptions options_;
  std::string fingerprint_;
};

/// The names of the folders in `path`, sorted.
std::vector<std::string> folders_in(const std::filesystem::path& path) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (entry.is_directory()) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::ranges::sort(names);
  return names;
}

/// The images below `folder`, sorted by folder and name. Throws: DataError for an image in another format.
std::vector<std::filesystem::path> images_in(const std::filesystem::path& folder) {
  using std::filesystem::directory_options;
  constexpr std::array<std::string_view, 3> kDecoded = {".png", ".jpg", ".jpeg"};
  constexpr std::array<std::string_view, 6> kOthers = {".bmp", ".pgm", ".ppm", ".tif", ".tiff", ".webp"};
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(folder, directory_options::follow_directory_symlink)) {
    const std::string extension = to_lower(entry.path().extension().string());
    if (entry.is_directory()) {
      continue;
    }
    if (std::ranges::find(kOthers, extension) != kOthers.end()) {
      throw DataError(fmt::format("{}: found a {} image, expected PNG and JPEG", entry.path().string(), extension),
                      "convert the image, or move it to another folder");
    }
    if (std::ranges::find(kDecoded, extension) != kDecoded.end()) {
      names.emplace_back(entry.path().parent_path().string(), entry.path().filename().string());
    }
  }
  std::ranges::sort(names);
  return mapped(names, [](const auto& name) { return std::filesystem::path(name.first) / name.second; });
}

void check_image_options(const ImageFolderOptions& options) {
  if (options.height < 0 || options.width < 0 || (options.height == 0) != (options.width == 0)) {
    throw ConfigError(
        fmt::format("image_folder: height is {} and width is {}, expected two positive numbers, or 0 and 0",
                    options.height, options.width));
  }
}

ImageFolder open_image_folder(const std::filesystem::path& path, const ImageFolderOptions& options) {
  ImageFolder folder{.classes = folders_in(path)};
  if (folder.classes.empty()) {
    throw DataError(fmt::format("{}: found no folders, expected one for each class", path.string()));
  }
  std::vector<std::filesystem::path> files;
  std::uint32_t names = 0;  // checksum
  for (const std::string& name : folder.classes) {
    const std::int64_t target = &name - folder.classes.data();
    const std::vector<std::filesystem::path> images = images_in(path / name);
    if (images.empty()) {
      throw DataError(
          fmt::format("{}: found no PNG or JPEG files, expected the images of a class", (path / name).string()));
    }
    for (const auto& image : images) {
      const std::string relative = image.lexically_relative(path).string() + '\n';
      names = crc32c(std::as_bytes(std::span(relative)), names);
    }
    files.insert(files.end(), images.begin(), images.end());
    folder.targets.resize(files.size(), target);
  }
  const std::string size =
      options.height > 0 ? fmt::format(", resized to {} x {}", options.height, options.width) : std::string();
  std::string fingerprint = fmt::format("{} images of {} classes {:08x}, {}{}{}", files.size(), folder.classes.size(),
                                        names, options.gray ? "gray" : "RGB", options.bytes ? " bytes" : "", size);
  folder.data = std::make_shared<ImageFiles>(std::move(files), folder.targets, options, std::move(fingerprint));
  return folder;
}

}  // namespace

ImageFolder image_folder(const std::filesystem::path& path, const ImageFolderOptions& options) {
  check_image_options(options);
  check_image_decoders();
  try {
    return open_image_folder(path, options);
  } catch (const std::filesystem::filesystem_error& error) {
    throw IoError(fmt::format("{}: {}", error.path1().string(), error.code().message()), {}, error.code().value());
  }
}

}  // namespace lockstep
