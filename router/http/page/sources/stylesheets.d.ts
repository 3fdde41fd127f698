/** Stylesheets, which esbuild bundles. */
declare module "*.css";
