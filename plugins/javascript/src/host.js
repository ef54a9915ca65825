// The host's interfaces: the bindings of a component (`component.js`), or a script under test (`testing.js`).
let installed;

export function host() {
  if (!installed) throw new Error('there is no host: run the plugin in Corral, or in a `Script` of "corral-sdk/testing"');
  return installed;
}

/** Installs the interfaces, and returns those before. */
export function install(interfaces) {
  const before = installed;
  installed = interfaces;
  return before;
}
