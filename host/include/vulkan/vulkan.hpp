// Supplements Vulkan's header with the structs of VK_EXT_layer_settings, which llama.cpp's backend uses and headers before
// 1.3.272 (such as Debian 12's) lack. Older loaders ignore these structs.
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

  // VK_STRUCTURE_TYPE_LAYER_SETTINGS_CREATE_INFO_EXT: extension number 497.
  VkStructureType sType = static_cast<VkStructureType>(1000496000);
  const void *pNext = nullptr;
  uint32_t settingCount;
  const LayerSettingEXT *pSettings;
};

} // namespace vk
#endif
