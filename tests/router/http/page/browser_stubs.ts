/** What the page's modules ask of a browser when they are loaded. Test files import this first. */
const nothing = (): null => null;
Object.assign(globalThis, {
  document: {
    hidden: false,
    addEventListener: nothing,
    baseURI: "http://127.0.0.1:3000/weft/ui",
    documentElement: { dataset: {} },
  },
  location: { hash: "#requests/50%" },
  addEventListener: nothing,
  matchMedia: () => ({ matches: false, addEventListener: nothing }),
  sessionStorage: { getItem: nothing, setItem: nothing, removeItem: nothing },
  localStorage: { getItem: nothing },
});
