// Vulkan's own header, with what llama.cpp's backend names of it and headers before 1.3.272 lack (those of Debian 12
// do): the structs of VK_EXT_layer_settings. It fills them in any case, and hands them over to a loader that passes
// over what it does not know.
#pragma once

#include_next <vulkan/vulkan.hpp>

#if VK_HEADER_VERSION < 272
#include <cstdint>
#include <vector>

namespace vk {

enum class LayerSettingTypeEXT { eBool32 = 0 };

struct LayerSettingEXT {
  const char *pLayerName;
  const char *pSettingName;
  LayerSettingTypeEXT type;
  uint32_t valueCount;
  const void *pValues;
};

struct LayerSettingsCreateInfoEXT {
  explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> &settings)
      : settingCount(static_cast<uint32_t>(settings.size())), pSettings(settings.data()) {}

  // The number of the extension, 497, as Vulkan counts types of structs.
  VkStructureType sType = static_cast<VkStructureType>(1000496000);
  const void *pNext = nullptr;
  uint32_t settingCount;
  const LayerSettingEXT *pSettings;
};

} // namespace vk
#endif
