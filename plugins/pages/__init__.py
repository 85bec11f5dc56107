"""The web application of the plugin: routes and templates over `storeside.pages`. Only the API server imports it."""
