// lockstep/data/image_folder.h
//
// Images in folders, as torchvision.datasets.ImageFolder reads them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/data/dataset.h>

namespace [[gnu::visibility("default")]] lockstep {

/// What image_folder() makes of each image.
struct ImageFolderOptions {
  std::int64_t height = 0;  ///< pixels; images are resized to height x width, bilinear with antialias; 0: not resized
  std::int64_t width = 0;   ///< pixels; 0 as well if `height` is 0
  bool gray = false;        ///< one channel, 0.299 R + 0.587 G + 0.114 B, instead of R, G, B
  bool bytes = false;       ///< uint8 0 .. 255 instead of float 0 .. 1
};

/// A data set of images, and what the folders say about it.
struct ImageFolder {
  std::shared_ptr<Dataset> data{};      ///< input [C, H, W], target int64: the index of the class
  std::vector<std::string> classes{};   ///< names of the folders in `path`, sorted
  std::vector<std::int64_t> targets{};  ///< the class of each sample, known without reading the images
};

/// The PNG and JPEG files (.png, .jpg, .jpeg, in upper or lower case) below the folders of `path`. Each folder is a
/// class. Samples are sorted by class, folder and file name. Images of different sizes need options.height and width,
/// or a `map` that gives them one size. Alpha channels are dropped, 16-bit channels become 8-bit ones, and the EXIF
/// orientation is not applied. The fingerprint has the names of the files, not their content. Throws: ConfigError
/// (invalid options; lockstep was built without the image libraries); IoError; DataError (no classes, a class without
/// images, images in other formats). get() throws DataError with the name of the file that cannot be decoded.
ImageFolder image_folder(const std::filesystem::path& path, const ImageFolderOptions& options = {});

}  // namespace lockstep
