#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spng.h>
#include <turbojpeg.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/data/data_loader.h>
#include <lockstep/data/image_folder.h>
#include <lockstep/data/transforms.h>
#include <lockstep/world/world.h>

#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/tensors.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using Ids = std::vector<std::int64_t>;
namespace fs = std::filesystem;

/// A smooth image with a little texture: bytes [C, H, W].
at::Tensor picture(std::int64_t height, std::int64_t width, std::int64_t channels = 3) {
  const at::Tensor y = at::arange(height, at::kFloat).view({1, height, 1});
  const at::Tensor x = at::arange(width, at::kFloat).view({1, 1, width});
  const at::Tensor c = at::arange(1, channels + 1, at::kFloat).view({channels, 1, 1});
  return (128 + 80 * at::sin(y / 5 * c) * at::cos(x / 7 + c) + 20 * at::sin(x * y)).to(at::kByte);
}

struct PngKind {
  spng_color_type color = SPNG_COLOR_TYPE_TRUECOLOR;
  std::uint8_t depth = 8;
  std::vector<std::uint8_t> palette{};  // R, G, B
};

/// `pixels`: [H, W, C] of bytes, or of the bytes of 16-bit channels.
std::string png_of(const at::Tensor& pixels, const PngKind& kind = {}) {
  const at::Tensor data = pixels.contiguous();
  const std::unique_ptr<spng_ctx, decltype(&spng_ctx_free)> encoder(spng_ctx_new(SPNG_CTX_ENCODER), &spng_ctx_free);
  spng_set_option(encoder.get(), SPNG_ENCODE_TO_BUFFER, 1);
  spng_ihdr header{.width = static_cast<std::uint32_t>(data.size(1)),
                   .height = static_cast<std::uint32_t>(data.size(0)),
                   .bit_depth = kind.depth,
                   .color_type = static_cast<std::uint8_t>(kind.color),
                   .compression_method = 0,
                   .filter_method = 0,
                   .interlace_method = SPNG_INTERLACE_NONE};
  EXPECT_EQ(spng_set_ihdr(encoder.get(), &header), SPNG_OK);
  if (!kind.palette.empty()) {
    spng_plte palette{};
    palette.n_entries = static_cast<std::uint32_t>(kind.palette.size() / 3);
    for (std::size_t i = 0; i < palette.n_entries; ++i) {
      palette.entries[i] = {kind.palette[3 * i], kind.palette[3 * i + 1], kind.palette[3 * i + 2], 0};
    }
    EXPECT_EQ(spng_set_plte(encoder.get(), &palette), SPNG_OK);
  }
  EXPECT_EQ(spng_encode_image(encoder.get(), data.const_data_ptr(), data.nbytes(), SPNG_FMT_RAW, SPNG_ENCODE_FINALIZE),
            SPNG_OK);
  std::size_t size = 0;
  int error = 0;
  const std::unique_ptr<void, decltype(&std::free)> bytes(spng_get_png_buffer(encoder.get(), &size, &error),
                                                          &std::free);
  EXPECT_EQ(error, SPNG_OK);
  return {static_cast<const char*>(bytes.get()), size};
}

std::string png_of_picture(const at::Tensor& image) { return png_of(image.permute({1, 2, 0})); }

/// `pixels`: [H, W, C].
std::string jpeg_of(const at::Tensor& pixels, int format, int subsampling, int quality = 95) {
  const at::Tensor data = pixels.contiguous();
  const std::unique_ptr<void, decltype(&tjDestroy)> encoder(tjInitCompress(), &tjDestroy);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  EXPECT_EQ(tjCompress2(encoder.get(), data.const_data_ptr<std::uint8_t>(), static_cast<int>(data.size(1)), 0,
                        static_cast<int>(data.size(0)), format, &bytes, &size, subsampling, quality, 0),
            0)
      << tjGetErrorStr2(encoder.get());
  std::string file(reinterpret_cast<const char*>(bytes), size);
  tjFree(bytes);
  return file;
}

void write(const fs::path& file, const std::string& bytes) {
  fs::create_directories(file.parent_path());
  write_text(file, bytes);
}

/// The image of a folder with this file alone.
at::Tensor decoded(const std::string& bytes, const ImageFolderOptions& options = {.bytes = true}) {
  const TempDir dir;
  write(dir.path() / "class" / "image.png", bytes);
  return image_folder(dir.path(), options).data->get(Ids{0}, {}).input[0];
}

double mean_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kFloat) - b.to(at::kFloat)).abs().mean().item<double>();
}

TEST(ImageFolder, FindsTheSamplesOfTorchvision) {
  const TempDir dir;
  int value = 0;
  // In the order of the samples. Python's sorted(): upper case before lower case, "10" before "2".
  for (const char* name :
       {"Zebra/a.png", "cat/10.PNG", "cat/2.png", "cat/b.jpeg", "cat/a/1.png", "cat/a-b/1.png", "dog/x.png"}) {
    write(dir.path() / name, png_of(at::full({2, 3, 3}, ++value, at::kByte)));
  }
  const TempDir elsewhere;
  fs::rename(dir.path() / "dog/x.png", elsewhere.path() / "blob");
  fs::create_symlink(elsewhere.path() / "blob", dir.path() / "dog/x.png");
  write(dir.path() / "cat/notes.txt", "no image");
  write(dir.path() / "labels.csv", "no folder");
  const ImageFolder folder = image_folder(dir.path(), {.bytes = true});
  EXPECT_THAT(folder.classes, ElementsAre("Zebra", "cat", "dog"));
  EXPECT_THAT(folder.targets, ElementsAre(0, 1, 1, 1, 1, 1, 2));
  const Batch batch = folder.data->get(Ids{0, 1, 2, 3, 4, 5, 6}, {});
  EXPECT_THAT(batch.input.sizes(), ElementsAre(7, 3, 2, 3));
  EXPECT_TRUE(
      at::equal(batch.input.select(1, 0).select(1, 0).select(1, 0), at::tensor({1, 2, 3, 4, 5, 6, 7}, at::kByte)));
  EXPECT_TRUE(at::equal(batch.target, at::tensor(folder.targets)));
}

TEST(ImageFolder, GivesTheExactPixelsOfPngFiles) {
  const at::Tensor image = picture(13, 17);
  const at::Tensor rows = image.permute({1, 2, 0});
  EXPECT_TRUE(at::equal(decoded(png_of(rows)), image));
  EXPECT_FALSE(at::equal(decoded(png_of(rows + 1)), image));
  EXPECT_TRUE(at::equal(decoded(png_of(rows), {}), image.to(at::kFloat) / 255));

  const at::Tensor alpha = at::cat({rows, at::full({13, 17, 1}, 77, at::kByte)}, 2);
  EXPECT_TRUE(at::equal(decoded(png_of(alpha, {.color = SPNG_COLOR_TYPE_TRUECOLOR_ALPHA})), image));

  const at::Tensor gray = picture(13, 17, 1);
  const at::Tensor gray_rows = gray.permute({1, 2, 0});
  EXPECT_TRUE(at::equal(decoded(png_of(gray_rows, {.color = SPNG_COLOR_TYPE_GRAYSCALE})), gray.expand({3, 13, 17})));
  EXPECT_TRUE(
      at::equal(decoded(png_of(gray_rows, {.color = SPNG_COLOR_TYPE_GRAYSCALE}), {.gray = true, .bytes = true}), gray))
      << "gray stays as it is";

  const at::Tensor wide =
      at::stack({rows, at::full_like(rows, 200)}, 3).view({13, 17, 6});  // 16 bits, the high byte first
  EXPECT_TRUE(at::equal(decoded(png_of(wide, {.depth = 16})), image));

  const at::Tensor index = (gray_rows / 100).to(at::kByte);
  const at::Tensor colors = at::tensor({9, 8, 7, 100, 150, 200, 3, 2, 1}, at::kByte).view({3, 3});
  EXPECT_TRUE(at::equal(
      decoded(png_of(index, {.color = SPNG_COLOR_TYPE_INDEXED, .palette = {9, 8, 7, 100, 150, 200, 3, 2, 1}})),
      colors.index_select(0, index.flatten().to(at::kLong)).view({13, 17, 3}).permute({2, 0, 1})));
}

// Written with Python's zlib: two rows of R, G, B.
TEST(ImageFolder, ReadsThePngFileOfAnotherEncoder) {
  const std::string hex =
      "89504e470d0a1a0a0000000d4948445200000002000000020802000000fdd49a730000001649444154789c6360646266"
      "616563f8f5fb4f436313001290048a09e12cab0000000049454e44ae426082";
  std::string file;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    file += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  EXPECT_TRUE(at::equal(decoded(file),
                        at::tensor({1, 4, 250, 128, 2, 5, 251, 129, 3, 6, 252, 130}, at::kByte).view({3, 2, 2})));
}

TEST(ImageFolder, GivesThePixelsOfJpegFiles) {
  const at::Tensor image = picture(24, 40);
  const at::Tensor rows = image.permute({1, 2, 0});
  for (const int subsampling : {TJSAMP_444, TJSAMP_422, TJSAMP_420}) {
    const at::Tensor found = decoded(jpeg_of(rows, TJPF_RGB, subsampling));
    EXPECT_THAT(found.sizes(), ElementsAre(3, 24, 40));
    EXPECT_LT(mean_difference(found, image), subsampling == TJSAMP_444 ? 3 : 6);
    EXPECT_GT(mean_difference(found.flip(0), image), 20) << "the colors are in order";
  }
  const std::string file = jpeg_of(rows, TJPF_RGB, TJSAMP_420);
  at::Tensor expected = at::empty({24, 40, 3}, at::kByte);
  const std::unique_ptr<void, decltype(&tjDestroy)> decoder(tjInitDecompress(), &tjDestroy);
  ASSERT_EQ(tjDecompress2(decoder.get(), reinterpret_cast<const unsigned char*>(file.data()), file.size(),
                          expected.mutable_data_ptr<std::uint8_t>(), 40, 0, 24, TJPF_RGB, 0),
            0);
  EXPECT_LE((decoded(file).to(at::kInt) - expected.permute({2, 0, 1}).to(at::kInt)).abs().max().item<int>(), 1);

  const at::Tensor gray = picture(24, 40, 1);
  const std::string gray_file = jpeg_of(gray.permute({1, 2, 0}), TJPF_GRAY, TJSAMP_GRAY);
  EXPECT_LT(mean_difference(decoded(gray_file), gray.expand({3, 24, 40})), 2);
  EXPECT_LT(mean_difference(decoded(gray_file, {.gray = true, .bytes = true}), gray), 2);

  // No black, so the colors are those of R, G, B.
  const at::Tensor cmyk = at::cat({rows, at::full({24, 40, 1}, 255, at::kByte)}, 2);
  EXPECT_LT(mean_difference(decoded(jpeg_of(cmyk, TJPF_CMYK, TJSAMP_444)), image), 3);
  const at::Tensor dark = at::cat({rows, at::full({24, 40, 1}, 51, at::kByte)}, 2);
  EXPECT_LT(mean_difference(decoded(jpeg_of(dark, TJPF_CMYK, TJSAMP_444)), image.to(at::kFloat) / 5), 2);
}

TEST(ImageFolder, ConvertsToGray) {
  const at::Tensor image = picture(9, 12);
  const at::Tensor found = decoded(png_of_picture(image), {.gray = true, .bytes = true});
  const at::Tensor expected = (image.to(at::kDouble) * at::tensor({0.299, 0.587, 0.114}).view({3, 1, 1})).sum(0, true);
  EXPECT_THAT(found.sizes(), ElementsAre(1, 9, 12));
  EXPECT_LE(largest_difference(found, expected), 0.51);
}

TEST(ImageFolder, ResizesWithAntialias) {
  const at::Tensor image = picture(60, 90);
  const auto resized = [&](bool antialias, std::int64_t height, std::int64_t width) {
    const at::Tensor whole = image.unsqueeze(0).to(at::kFloat);
    return (antialias ? at::_upsample_bilinear2d_aa(whole, {height, width}, false)
                      : at::upsample_bilinear2d(whole, {height, width}, false))[0];
  };
  for (const auto& [height, width] : {std::pair{20, 15}, {7, 33}, {100, 200}}) {
    const at::Tensor found = decoded(png_of_picture(image), {.height = height, .width = width, .bytes = true});
    ASSERT_THAT(found.sizes(), ElementsAre(3, height, width));
    EXPECT_LE((found - resized(true, height, width)).abs().max().item<double>(), 1) << height << " x " << width;
    EXPECT_TRUE(
        at::equal(decoded(png_of_picture(image), {.height = height, .width = width}), found.to(at::kFloat) / 255));
  }
  EXPECT_GT((resized(false, 20, 15) - resized(true, 20, 15)).abs().max().item<double>(), 5);
  EXPECT_THAT(decoded(png_of_picture(image), {.height = 5, .width = 6, .gray = true}).sizes(), ElementsAre(1, 5, 6));
}

TEST(ImageFolder, LoadsTheSameBatchesWithAnyNumberOfWorkers) {
  const TempDir dir;
  for (int i = 0; i < 12; ++i) {
    write(dir.path() / (i % 2 == 0 ? "even" : "odd") / (std::to_string(i) + ".png"),
          png_of_picture(picture(10 + i, 20 - i)));
  }
  World world = World::single(c10::kCPU);
  const auto batches = [&](int workers, std::uint64_t seed) {
    const auto crop = [](Batch sample, std::uint64_t random) {
      sample.input = sample.input.narrow(1, static_cast<std::int64_t>(random % 2), 8).narrow(2, 0, 8);
      return sample;
    };
    DataLoader loader(map(image_folder(dir.path()).data, crop),
                      {.batch = {.batch_size = 5, .global_batch_size = 5}, .data = {.workers = workers}, .seed = seed},
                      world);
    std::vector<at::Tensor> inputs;
    for (int step = 0; step < 6; ++step) {
      inputs.push_back(loader.next()->micro[0].input);
    }
    return at::cat(inputs);
  };
  EXPECT_TRUE(at::equal(batches(3, 1), batches(0, 1)));
  EXPECT_FALSE(at::equal(batches(0, 2), batches(0, 1)));
}

TEST(ImageFolder, NamesBrokenFiles) {
  const auto error = [](const std::string& bytes) { return message_of<DataError>([&] { decoded(bytes); }); };
  const at::Tensor image = picture(50, 50);
  const std::string png = png_of_picture(image);
  const std::string jpeg = jpeg_of(image.permute({1, 2, 0}), TJPF_RGB, TJSAMP_420);
  EXPECT_EQ(error(png), "no error");
  EXPECT_EQ(error(jpeg), "no error");
  EXPECT_THAT(error("GIF89a"), HasSubstr("class/image.png: found 6 bytes that are no PNG or JPEG file"));
  EXPECT_THAT(error(""), HasSubstr("class/image.png: found 0 bytes that are no PNG or JPEG file"));
  std::string damaged = png;
  damaged[png.size() / 2] ^= 0x10;
  EXPECT_THAT(error(damaged), HasSubstr("class/image.png: invalid PNG file: "));
  for (const double part : {0.02, 0.3, 0.9}) {
    const auto cut = [&](const std::string& file) {
      return file.substr(0, static_cast<std::size_t>(part * static_cast<double>(file.size())));
    };
    EXPECT_THAT(error(cut(png)), HasSubstr("class/image.png: invalid PNG file: ")) << part;
    EXPECT_THAT(error(cut(jpeg)), HasSubstr("class/image.png: invalid JPEG file: ")) << part;
  }
}

// A damaged file either is decoded or is an error that names it.
TEST(ImageFolder, SurvivesEveryDamagedByte) {
  const TempDir dir;
  const fs::path path = dir.path() / "class" / "image.png";
  write(path, "");
  const auto data = image_folder(dir.path()).data;
  const at::Tensor image = picture(9, 9);
  int errors = 0;
  int images = 0;
  for (const std::string& file : {png_of_picture(image), jpeg_of(image.permute({1, 2, 0}), TJPF_RGB, TJSAMP_420)}) {
    for (std::size_t at = 0; at < file.size(); ++at) {
      std::string damaged = file;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
      write(path, damaged);
      try {
        data->get(Ids{0}, {});
        ++images;
      } catch (const DataError& error) {
        EXPECT_THAT(error.what(), HasSubstr("class/image.png: "));
        ++errors;
      }
    }
  }
  EXPECT_GT(errors, 100);
  EXPECT_GT(images, 100);
}

TEST(ImageFolder, HasItsBrokenFilesReplaced) {
  const TempDir dir;
  for (int i = 0; i < 4; ++i) {
    write(dir.path() / "class" / (std::to_string(i) + ".png"),
          i == 2 ? "no image" : png_of(at::full({2, 2, 3}, i, at::kByte)));
  }
  World world = World::single(c10::kCPU);
  LoaderPlan plan{.batch = {.batch_size = 4, .global_batch_size = 4}, .sampler = {.shuffle = false}};
  DataLoader strict(image_folder(dir.path()).data, plan, world);
  EXPECT_THAT(message_of<DataError>([&] { strict.next(); }),
              testing::AllOf(StartsWith("sample 2: "), HasSubstr("class/2.png: found 8 bytes")));
  plan.data.max_bad_samples = 1;
  DataLoader tolerant(image_folder(dir.path()).data, plan, world);
  EXPECT_THAT(tolerant.next()->micro[0].ids, ElementsAre(0, 1, 3, 3));
}

TEST(ImageFolder, RejectsOtherFolders) {
  const TempDir dir;
  const auto error = [&](const fs::path& path) { return message_of([&] { image_folder(path); }); };
  EXPECT_THAT(error(dir.path() / "missing"), HasSubstr("missing: No such file or directory"));
  write(dir.path() / "flat" / "a.png", "");
  EXPECT_THAT(error(dir.path() / "flat"), HasSubstr("flat: found no folders, expected one for each class"));
  write(dir.path() / "two" / "a" / "1.png", "");
  write(dir.path() / "two" / "b" / "1.txt", "");
  EXPECT_THAT(error(dir.path() / "two"), HasSubstr("two/b: found no PNG or JPEG files"));
  write(dir.path() / "other" / "a" / "1.png", "");
  write(dir.path() / "other" / "a" / "2.WEBP", "");
  EXPECT_THAT(error(dir.path() / "other"), HasSubstr("other/a/2.WEBP: found a .webp image, expected PNG and JPEG"));
  for (const ImageFolderOptions& options :
       {ImageFolderOptions{.height = 3}, {.width = 3}, {.height = -1, .width = -1}}) {
    EXPECT_THAT(message_of<ConfigError>([&] { image_folder(dir.path() / "two", options); }),
                StartsWith("image_folder: height is "));
  }
}

TEST(ImageFolder, IsIdentifiedByTheNamesOfItsFiles) {
  const TempDir dir;
  const auto fingerprint = [&](const ImageFolderOptions& options = {}) {
    return image_folder(dir.path(), options).data->fingerprint();
  };
  write(dir.path() / "class" / "a.png", "");
  const std::string first = fingerprint();
  EXPECT_THAT(first, StartsWith("1 images of 1 classes "));
  EXPECT_NE(fingerprint({.gray = true}), first);
  EXPECT_NE(fingerprint({.bytes = true}), first);
  EXPECT_NE(fingerprint({.height = 1, .width = 1}), first);
  fs::rename(dir.path() / "class" / "a.png", dir.path() / "class" / "b.png");
  EXPECT_NE(fingerprint(), first);
}

}  // namespace
}  // namespace lockstep
