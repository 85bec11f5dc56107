"""The web application of the plugin: routes and templates over `include.pages`. Only the API server imports it."""
