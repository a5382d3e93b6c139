"""Values → what a person sees. Pure: returns text and renderables, prints nothing."""
